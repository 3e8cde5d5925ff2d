# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""log1p: ln(1 + x), x at least `min` when given."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from rap_contract.ops.log1p import Log1p
from triton.language.extra.cuda import libdevice

from rap_trainer.fusion.ops.elements import INTERPRETED, flag
from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Log1p) -> Step:
    """The op as a step; without `min` the bound is -inf."""
    return Step(name="log1p", parameters=(float_word(-math.inf if op.min is None else op.min),))


@triton.jit
def log1p(x, step):
    """Floats. In the interpreter, with u = 1 + x rounded, ln(u) * x / (u - 1) cancels the rounding of u (Kahan)."""
    low = float_parameter(step, 1, x)
    x = tl.where(x < low, low, x)
    if INTERPRETED:
        u = 1.0 + x
        exact = tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0))
        large = flag(u - 1.0 == x) | flag(u == 0.0)
        result = tl.where(u == 1.0, x, tl.where(large, tl.log(u), exact))
    else:
        result = libdevice.log1p(x)
    return result
