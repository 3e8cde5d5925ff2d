"""Static types of the values that flow through a feature's op chain."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

COLUMN_TYPE = re.compile(r"^(?:(list)<)?(int32|int64|float32|float64)(?(1)>)$")


class Dtype(StrEnum):
    """Element types a column may declare."""

    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def is_integer(self) -> bool:
        return self in (Dtype.INT32, Dtype.INT64)

    @property
    def num_bytes(self) -> int:
        return 4 if self in (Dtype.INT32, Dtype.FLOAT32) else 8

    @property
    def integer_bounds(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type. Raises ValueError for a float type."""
        if not self.is_integer:
            raise ValueError(f"{self} has no integer bounds")
        bits = 8 * self.num_bytes - 1
        return -(2**bits), 2**bits - 1


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """What is known of a value before any row is seen.

    `width` is the length every non-null row's list has, when that is fixed. `low` and `high` are
    inclusive bounds that every non-null integer is proven to respect; None means unproven.
    """

    dtype: Dtype
    is_list: bool = False
    nullable: bool = True
    width: int | None = None
    low: int | None = None
    high: int | None = None

    @classmethod
    def parse(cls, text: str) -> ValueType:
        """The type a column declares, such as `int32` or `list<int64>`. Raises ValueError."""
        match = COLUMN_TYPE.match(text)
        if match is None:
            known = [str(d) for d in Dtype] + [f"list<{d}>" for d in Dtype]
            raise ValueError(f"unknown column type {text!r}; one of {', '.join(known)}")
        return cls(dtype=Dtype(match.group(2)), is_list=match.group(1) is not None)

    def with_(self, **changes: object) -> ValueType:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # names are checked by replace

    def __str__(self) -> str:
        return f"list<{self.dtype}>" if self.is_list else str(self.dtype)
