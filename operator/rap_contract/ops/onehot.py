"""onehot: a number becomes a list with a one in its class's place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rap_contract.ops.base import LEAST_SCALE, Bound, Op
from rap_contract.types import Dtype, ValueType


class Onehot(Op):
    """A list of `classes` zeros with a one at trunc((x - low) / step), step = (high - low) / classes.

    An index outside [0, classes), and NaN, count as class 0. A list gives the concatenation for its
    elements. The index is computed in float64 for float64 columns, in float32 for all others.
    """

    stem: ClassVar[str] = "onehot"
    low: Bound
    """Where the first class begins."""
    high: Bound
    """Where the last class ends."""
    classes: int = Field(ge=1, le=4096)
    """Number of classes."""
    dtype: Literal["float32", "int64"] = "float32"
    """Type of the ones and zeros."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if (self.high - self.low) / self.classes < LEAST_SCALE:
            raise ValueError(f"high must be above low, by {LEAST_SCALE} a class: low {self.low}, high {self.high}")
        return self

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        width = self.classes if not value.is_list else None if value.width is None else value.width * self.classes
        integer = self.dtype == "int64"
        return ValueType(
            dtype=Dtype(self.dtype),
            is_list=True,
            nullable=value.nullable,
            width=width,
            low=0 if integer else None,
            high=1 if integer else None,
        )
