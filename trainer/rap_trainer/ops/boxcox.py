"""boxcox: x > 0 ? (lambda = 0 ? ln x : (x^lambda - 1) / lambda) : x.

Computed in float64 as expm1(lambda * ln x) / lambda and rounded once. `Tensor.pow` would round differently
in its vector loop and in the rest behind it, so that a number's result depended on its place in the batch.
"""

from __future__ import annotations

import torch
from rap_contract.ops.boxcox import Boxcox

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: Boxcox, value: Value, references: References, context: Context) -> Value:
    """Transformed numbers in their own type; 0, negative numbers and NaN pass through."""
    del references, context
    values_N = elements(value)
    log_N = values_N.to(torch.float64).log()
    transformed_N = log_N if op.lambda_ == 0 else log_N.mul_(op.lambda_).expm1_().div_(op.lambda_)
    return value.with_values(torch.where(values_N > 0, transformed_N.to(values_N.dtype), values_N))
