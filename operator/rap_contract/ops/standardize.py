"""standardize: centred and scaled by given constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import LEAST_SCALE, Bound, Op
from rap_contract.types import ValueType


class Standardize(Op):
    """(x - mean) / std with given constants, never those of a batch."""

    stem: ClassVar[str] = "standardize"
    mean: Bound
    """What becomes 0."""
    std: float = Field(ge=LEAST_SCALE, le=1e30)
    """What becomes 1 above the mean."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_float(value)
        return value
