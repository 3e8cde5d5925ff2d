"""bucketize: numbers become the index of the interval they fall in."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class Bucketize(Op):
    """Index 0..len(borders) of the interval a number falls in, int32; NaN gives 0 and is counted.

    `side: left` gives i = the number of borders < x; where x equals a border that repeats and
    i < len(borders) - 1 it gives i + 1, as TorchArrow does. `side: right` gives the number of
    borders <= x. Borders are rounded to the column's type when that is a float type; integers are
    compared with them exactly.
    """

    stem: ClassVar[str] = "bucketize"
    borders: Annotated[list[float], Field(min_length=1, max_length=100_000)]
    """Interval borders in ascending order."""
    side: Literal["left", "right"] = "left"
    """A number equal to a border belongs to the interval below it, or above it."""

    @field_validator("borders")
    @classmethod
    def _ascending(cls, borders: list[float]) -> list[float]:
        for i, (first, second) in enumerate(pairwise(borders)):
            if second < first:
                raise ValueError(f"borders must ascend: border {i + 1} is {second}, below {first}")
        return borders

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        return value.with_(dtype=Dtype.INT32, low=0, high=len(self.borders))
