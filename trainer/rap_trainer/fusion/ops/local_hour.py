# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""local_hour: floor((t + offset) / 3600) mod 24."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.local_hour import LocalHour
from rap_contract.types import Dtype

from rap_trainer.fusion.ops.elements import DTYPE_CODES
from rap_trainer.fusion.ops.step import Step

DAY_S = tl.constexpr(86_400)
HOUR_S = tl.constexpr(3_600)


def encode(op: LocalHour, offset_dtype: Dtype | None) -> Step:
    """The op as a step: (offset within a day) or, with a column, (slot of the column, its type)."""
    if offset_dtype is not None:
        return Step(name="local_hour_column", parameters=(0, DTYPE_CODES[offset_dtype]))
    return Step(name="local_hour", parameters=((op.offset or 0) % 86_400,))


@triton.jit
def within_day(seconds):
    """Floor-mod by a day; Triton's % has the sign of the dividend."""
    rest = seconds % DAY_S
    return tl.where(rest < 0, rest + DAY_S, rest)


@triton.jit
def local_hour(seconds, offset):
    """int64 epoch seconds and offset -> 0..23, computed within a day so that nothing overflows."""
    return (within_day(within_day(seconds) + within_day(offset)) // HOUR_S).to(tl.int64)
