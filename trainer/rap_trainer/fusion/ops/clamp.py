# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""clamp: min(max(x, lo), hi); NaN stays NaN."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.clamp import Clamp
from rap_contract.types import ValueType

from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Clamp, value: ValueType) -> Step:
    """The op on `value` as a step."""
    if value.dtype.is_integer:
        return Step(name="clamp_int", parameters=(int(op.lo), int(op.hi)))
    return Step(name="clamp_float", parameters=(float_word(float(op.lo)), float_word(float(op.hi))))


@triton.jit
def clamp_int(x, step):
    """Integers."""
    lo = tl.load(step + 1)
    hi = tl.load(step + 2)
    x = tl.where(x < lo, lo, x)
    return tl.where(x > hi, hi, x)


@triton.jit
def clamp_float(x, step):
    """Floats: comparisons with NaN are false, so NaN passes."""
    lo = float_parameter(step, 1, x)
    hi = float_parameter(step, 2, x)
    x = tl.where(x < lo, lo, x)
    return tl.where(x > hi, hi, x)
