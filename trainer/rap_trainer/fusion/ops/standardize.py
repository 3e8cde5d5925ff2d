# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""standardize: (x - mean) / std."""

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401  # the interpreter looks for it in every kernel
from rap_contract.ops.standardize import Standardize

from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Standardize) -> Step:
    """The op as a step: (x - mean) / std."""
    return Step(name="affine", parameters=(float_word(op.mean), float_word(op.std)))


@triton.jit
def affine(x, step):
    """(x - first parameter) / second parameter; min_max shares it."""
    return (x - float_parameter(step, 1, x)) / float_parameter(step, 2, x)
