# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""fill_null: x null -> value; with `nan` also NaN -> value."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.fill_null import FillNull
from rap_contract.types import ValueType

from rap_trainer.fusion.ops.elements import flag
from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: FillNull, value: ValueType) -> Step:
    """The op on `value` as a step."""
    if value.dtype.is_integer:
        return Step(name="fill_int", parameters=(int(op.value),))
    return Step(name="fill_float", parameters=(float_word(float(op.value)), int(op.nan)))


@triton.jit
def fill_int(x, null, step):
    """Integers."""
    return tl.where(null, tl.load(step + 1), x)


@triton.jit
def fill_float(x, null, step):
    """Floats."""
    nan = flag(x != x) & (tl.load(step + 2) != 0)
    return tl.where(null | nan, float_parameter(step, 1, x), x)
