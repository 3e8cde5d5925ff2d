"""cartesian: every pair of two lists, hashed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class Cartesian(Op):
    """hash_128_to_64(u=a, l=b) as signed int64 of each pair of a row, all b for the first a first.

    A pair's weight is the product of the two weights. Each row keeps its first `max` pairs.
    """

    stem: ClassVar[str] = "cartesian"
    with_: str = Field(alias="with", min_length=1, max_length=253)
    """Column or feature with the other list."""
    max: int = Field(ge=1, le=100_000)
    """Most pairs of a row; the rest is dropped."""

    def references(self) -> tuple[str, ...]:
        return (self.with_,)

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        other = references[self.with_]
        for each in (value, other):
            self.need_integer(each)
            self.need_list(each)
        known = value.width is not None and other.width is not None
        width = min(value.width * other.width, self.max) if known else None  # type: ignore[operator]  # both known
        return ValueType(dtype=Dtype.INT64, is_list=True, nullable=value.nullable or other.nullable, width=width)
