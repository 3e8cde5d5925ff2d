"""enumerate: elements become their positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class Enumerate(Op):
    """Positions 0..len-1 of a list, int64; weights stay."""

    stem: ClassVar[str] = "enumerate"

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_list(value)
        return value.with_(dtype=Dtype.INT64, low=0, high=None if value.width is None else max(value.width - 1, 0))
