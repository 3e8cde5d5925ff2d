"""ngram: windows of consecutive ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class Ngram(Op):
    """All windows of m = min(size, len) consecutive elements: (len - m + 1) * m elements, concatenated.

    `combine: hash` gives one int64 a window instead: its first id, folded with each further one as
    hash_128_to_64(u=so far, l=id); the window's weight is the product of its elements' weights.
    """

    stem: ClassVar[str] = "ngram"
    n: int = Field(alias="size", ge=1, le=64)
    """Length of a window."""
    combine: Literal["concat", "hash"] = "concat"
    """Give the windows' elements, or one hashed id a window (integer lists only)."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_list(value)
        if self.combine == "hash":
            self.need_integer(value)
        m = None if value.width is None else min(self.n, value.width)
        windows = None if value.width is None or m is None else value.width - m + 1 if value.width else 0
        if self.combine == "hash":
            return value.with_(dtype=Dtype.INT64, width=windows, low=None, high=None)
        return value.with_(width=None if windows is None or m is None else windows * m)
