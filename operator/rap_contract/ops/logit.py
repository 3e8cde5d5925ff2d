"""logit: the log-odds of a share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op, OpError
from rap_contract.types import Dtype, ValueType

LEAST_FLOAT32_EPS = 1e-7  # 1 - eps is then below 1 by at least one step of float32 (2^-24)


class Logit(Op):
    """Clamp to [eps, 1 - eps], then ln(x / (1 - x)); NaN stays NaN."""

    stem: ClassVar[str] = "logit"
    eps: float = Field(gt=0, lt=0.5)
    """Distance kept from 0 and 1."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_float(value)
        if value.dtype is Dtype.FLOAT32 and self.eps < LEAST_FLOAT32_EPS:
            message = f"eps {self.eps} is lost in {value}: 1 - eps rounds to 1, whose logit is infinite"
            raise OpError(message, f"give {LEAST_FLOAT32_EPS} or more, or declare the column as float64")
        return value
