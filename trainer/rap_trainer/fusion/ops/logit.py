# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""logit: clamp to [eps, 1 - eps], then ln(x / (1 - x))."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.logit import Logit

from rap_trainer.fusion.ops.elements import natural_log
from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Logit) -> Step:
    """The op as a step."""
    return Step(name="logit", parameters=(float_word(op.eps), float_word(1.0 - op.eps)))


@triton.jit
def logit(x, step):
    """Floats; NaN passes the clamp and the logarithm."""
    lo = float_parameter(step, 1, x)
    hi = float_parameter(step, 2, x)
    x = tl.where(x < lo, lo, x)
    x = tl.where(x > hi, hi, x)
    return natural_log(x / (1.0 - x))
