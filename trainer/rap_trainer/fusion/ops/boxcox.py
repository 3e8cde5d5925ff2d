# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""boxcox: x > 0: ln x for lambda 0, else (x^lambda - 1) / lambda; other x pass through."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.boxcox import Boxcox

from rap_trainer.fusion.ops.elements import natural_log
from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Boxcox) -> Step:
    """The op as a step; lambda 0 has a function of its own."""
    if op.lambda_ == 0:
        return Step(name="boxcox_log")
    return Step(name="boxcox", parameters=(float_word(op.lambda_),))


@triton.jit
def boxcox(x, step):
    """Lambda other than 0, in float64 as its twin: x^lambda - 1 cancels, and is rounded once."""
    exponent = float_parameter(step, 1, x.to(tl.float64))
    logarithm = tl.log(tl.where(x > 0, x, 1.0).to(tl.float64))
    return tl.where(x > 0, ((tl.exp(exponent * logarithm) - 1.0) / exponent).to(x.dtype), x)


@triton.jit
def boxcox_log(x):
    """Lambda 0."""
    return tl.where(x > 0, natural_log(tl.where(x > 0, x, 1.0)), x)
