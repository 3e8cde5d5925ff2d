"""min_max: a range scaled to 0..1 by given constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import model_validator

from rap_contract.ops.base import LEAST_SCALE, Bound, Op
from rap_contract.types import ValueType


class MinMax(Op):
    """(x - lo) / (hi - lo) with given constants; numbers outside [lo, hi] leave 0..1."""

    stem: ClassVar[str] = "min_max"
    lo: Bound
    """What becomes 0."""
    hi: Bound
    """What becomes 1."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.hi - self.lo < LEAST_SCALE:
            raise ValueError(f"hi must be above lo, by {LEAST_SCALE} at least: lo {self.lo}, hi {self.hi}")
        return self

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_float(value)
        return value
