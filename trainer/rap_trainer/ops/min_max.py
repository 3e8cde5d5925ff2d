"""min_max: (x - lo) / (hi - lo) with given constants."""

from __future__ import annotations

from rap_contract.ops.min_max import MinMax

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: MinMax, value: Value, references: References, context: Context) -> Value:
    """Scaled numbers in their own type, outside 0..1 for numbers outside the bounds."""
    del references, context
    return value.with_values(elements(value).sub(op.lo).div_(op.hi - op.lo))
