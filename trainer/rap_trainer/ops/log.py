"""log: ln x, of at least `min` if given. Integers are rounded to float32 first."""

from __future__ import annotations

import torch
from rap_contract.ops.log import Log

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: Log, value: Value, references: References, context: Context) -> Value:
    """Logarithms, float32 or float64; NaN stays NaN."""
    del references, context
    values_N = elements(value)
    if not values_N.is_floating_point():
        values_N = values_N.to(torch.float32)
    if op.min is not None:
        values_N = values_N.clamp(min=op.min)
    return value.with_values(values_N.log())
