# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""log: ln x, x at least `min` when given."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from rap_contract.ops.log import Log

from rap_trainer.fusion.ops.elements import natural_log
from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Log) -> Step:
    """The op as a step; without `min` the bound is -inf."""
    return Step(name="log", parameters=(float_word(-math.inf if op.min is None else op.min),))


@triton.jit
def log(x, step):
    """Floats; NaN passes the bound."""
    low = float_parameter(step, 1, x)
    return natural_log(tl.where(x < low, low, x))
