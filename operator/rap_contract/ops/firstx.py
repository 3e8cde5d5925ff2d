"""firstx: the head of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class Firstx(Op):
    """The first `count` elements of each list, all of a shorter one; weights follow."""

    stem: ClassVar[str] = "firstx"
    n: int = Field(alias="count", ge=0, lt=2**31)
    """How many elements to keep."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_list(value)
        if value.width is not None:
            return value.with_(width=min(self.n, value.width))
        return value.with_(width=0 if self.n == 0 else None)
