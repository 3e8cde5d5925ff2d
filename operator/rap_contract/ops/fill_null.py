"""fill_null: nulls become a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rap_contract.ops.base import Op, OpError
from rap_contract.types import Dtype, ValueType

FLOAT32_MAX = (2 - 2**-23) * 2.0**127  # largest finite IEEE 754 binary32


class FillNull(Op):
    """Nulls become `value`, cast to the column's type; a null list becomes a list of one `value`."""

    stem: ClassVar[str] = "fill_null"
    value: float | int
    """What a null becomes; finite and representable in the column's type."""
    nan: bool = False
    """Treat NaN as null; float columns only."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        filled = value.with_(nullable=False, width=value.width if not value.nullable or value.width == 1 else None)
        if not value.dtype.is_integer:
            if value.dtype is Dtype.FLOAT32 and abs(self.value) > FLOAT32_MAX:
                raise OpError(f"value {self.value} does not fit {value}", f"give a number within {FLOAT32_MAX:.6g}")
            return filled
        if self.nan:
            raise OpError(f"nan: true needs a float column, this one is {value}", "remove `nan`")
        filler = self.whole("value", self.value, value)
        if not value.nullable:
            return filled
        return filled.with_(
            low=None if value.low is None else min(value.low, filler),
            high=None if value.high is None else max(value.high, filler),
        )
