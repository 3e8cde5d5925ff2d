"""sigrid_hash: ids hashed into a table's rows, as TorchArrow and production models do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op, OpError
from rap_contract.types import Dtype, ValueType


class SigridHash(Op):
    """Floor-mod of a signed 64-bit hash of each id: int64 in [0, maxValue)."""

    stem: ClassVar[str] = "sigrid_hash"
    salt: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Seed of the hash."""
    max_value: int | None = Field(default=None, ge=1, lt=2**63)
    """Hashes are below this; default: the rows of the feature's table."""

    def with_table_rows(self, rows: int) -> SigridHash:
        return self if self.max_value is not None else self.model_copy(update={"max_value": rows})

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_integer(value)
        if self.max_value is None:
            raise OpError("sigridHash has no maxValue and its feature no table", "give maxValue, or give a table")
        return value.with_(dtype=Dtype.INT64, low=0, high=self.max_value - 1)
