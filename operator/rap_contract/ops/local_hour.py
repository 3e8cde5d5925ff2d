"""local_hour: the hour of the day where the event happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class LocalHour(Op):
    """floor((t + offset) / 3600) mod 24 of a time in epoch seconds, int32."""

    stem: ClassVar[str] = "local_hour"
    offset: int | None = Field(default=None, ge=-86_400, le=86_400)
    """Seconds east of UTC; default 0."""
    offset_column: str | None = Field(default=None, min_length=1, max_length=253)
    """Column or feature with each row's seconds east of UTC."""

    @model_validator(mode="after")
    def _one_offset(self) -> Self:
        if self.offset is not None and self.offset_column is not None:
            raise ValueError("give offset or offsetColumn, not both")
        return self

    def references(self) -> tuple[str, ...]:
        return () if self.offset_column is None else (self.offset_column,)

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        self.need_integer(value)
        nullable = value.nullable
        if self.offset_column is not None:
            offset = references[self.offset_column]
            if offset.is_list or not offset.dtype.is_integer:
                raise self.mismatch("an int32 or int64 as offsetColumn", offset, "name a column of one number a row")
            nullable = nullable or offset.nullable
        return value.with_(dtype=Dtype.INT32, low=0, high=23, nullable=nullable)
