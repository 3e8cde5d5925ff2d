"""positive_modulus: the remainder that is never negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class PositiveModulus(Op):
    """Floor-mod of each id by `modulus`: [0, modulus)."""

    stem: ClassVar[str] = "positive_modulus"
    n: int = Field(alias="modulus", ge=1, lt=2**63)
    """The divisor; it must fit the column's type."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_integer(value)
        return value.with_(low=0, high=self.whole("modulus", self.n, value) - 1)
