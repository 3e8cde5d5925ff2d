"""logit: the log-odds of a share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class Logit(Op):
    """Clamp to [eps, 1 - eps], then ln(x / (1 - x)); NaN stays NaN."""

    stem: ClassVar[str] = "logit"
    eps: float = Field(gt=0, lt=0.5)
    """Distance kept from 0 and 1."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_float(value)
        return value
