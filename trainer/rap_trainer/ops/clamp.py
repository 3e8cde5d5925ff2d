"""clamp: min(max(x, lo), hi)."""

from __future__ import annotations

from rap_contract.ops.clamp import Clamp

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: Clamp, value: Value, references: References, context: Context) -> Value:
    """Numbers within the bounds, in their own type; NaN stays NaN."""
    del references, context
    values_N = elements(value)
    number = float if values_N.is_floating_point() else int
    return value.with_values(values_N.clamp(number(op.lo), number(op.hi)))
