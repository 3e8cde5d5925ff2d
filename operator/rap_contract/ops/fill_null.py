"""fill_null: nulls become a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rap_contract.ops.base import Op, OpError
from rap_contract.types import ValueType


class FillNull(Op):
    """Nulls become `value`, cast to the column's type."""

    stem: ClassVar[str] = "fill_null"
    value: float | int
    """What a null becomes; finite and representable in the column's type."""
    nan: bool = False
    """Treat NaN as null; float columns only."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        if not value.dtype.is_integer:
            return value.with_(nullable=False)
        if self.nan:
            raise OpError(f"nan: true needs a float column, this one is {value}", "remove `nan`")
        if self.value != int(self.value):
            raise OpError(f"{self.value} does not fit {value}", "give a whole number")
        filler = int(self.value)
        low, high = value.dtype.integer_bounds
        if not low <= filler <= high:
            raise OpError(f"{filler} does not fit {value}", f"give a number from {low} to {high}")
        return value.with_(
            nullable=False,
            low=None if value.low is None else min(value.low, filler),
            high=None if value.high is None else max(value.high, filler),
        )
