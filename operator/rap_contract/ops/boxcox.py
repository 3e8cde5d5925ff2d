"""boxcox: the power transform that makes positive numbers more normal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class Boxcox(Op):
    """x > 0: ln x for lambda 0, else (x^lambda - 1) / lambda; other x pass through."""

    stem: ClassVar[str] = "boxcox"
    lambda_: float = Field(alias="lambda", ge=-100, le=100)
    """The power."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_float(value)
        return value
