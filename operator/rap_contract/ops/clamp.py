"""clamp: numbers held within two bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import model_validator

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class Clamp(Op):
    """min(max(x, lo), hi); NaN stays NaN."""

    stem: ClassVar[str] = "clamp"
    lo: float | int
    """Lower bound; whole and within the type for an integer column."""
    hi: float | int
    """Upper bound; whole and within the type for an integer column."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lo > self.hi:
            raise ValueError(f"lo must not be above hi: lo {self.lo}, hi {self.hi}")
        return self

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        if not value.dtype.is_integer:
            return value
        lo, hi = self.whole("lo", self.lo, value), self.whole("hi", self.hi, value)
        return value.with_(
            low=lo if value.low is None else min(max(value.low, lo), hi),
            high=hi if value.high is None else min(max(value.high, lo), hi),
        )
