"""boxcox: x > 0 ? (lambda = 0 ? ln x : (x^lambda - 1) / lambda) : x."""

from __future__ import annotations

import torch
from rap_contract.ops.boxcox import Boxcox

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: Boxcox, value: Value, references: References, context: Context) -> Value:
    """Transformed numbers in their own type; 0, negative numbers and NaN pass through."""
    del references, context
    values_N = elements(value)
    transformed_N = values_N.log() if op.lambda_ == 0 else values_N.pow(op.lambda_).sub_(1).div_(op.lambda_)
    return value.with_values(torch.where(values_N > 0, transformed_N, values_N))
