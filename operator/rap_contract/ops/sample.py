"""sample: a deterministic share of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class Sample(Op):
    """Keeps an element if a hash of (row id, position, salt) falls below `rate`; weights follow.

    h = hash_128_to_64(hash_128_to_64(salt, twang_mix64(row id)), twang_mix64(position)), unsigned; an element
    stays if floor(h / 2^11) < ceil(rate * 2^53). A row gives the same sample wherever and whenever it is read.
    """

    stem: ClassVar[str] = "sample"
    rate: float = Field(ge=0, le=1)
    """Expected share of the elements that stay."""
    salt: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Seed of the hash."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_list(value)
        return value.with_(width=None)
