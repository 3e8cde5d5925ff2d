"""log: the natural logarithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class Log(Op):
    """ln x; ln 0 = -inf, of a negative number NaN. Integers are rounded to float32 first."""

    stem: ClassVar[str] = "log"
    min: float | None = Field(default=None, gt=0, le=1e38)
    """Smaller numbers become this one before the logarithm."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        dtype = Dtype.FLOAT32 if value.dtype.is_integer else value.dtype
        return value.with_(dtype=dtype, low=None, high=None)
