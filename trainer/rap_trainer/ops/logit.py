"""logit: ln(x / (1 - x)) of x clamped to [eps, 1 - eps]. float32 tolerance of other paths: 2e-6 absolute + relative."""

from __future__ import annotations

import torch
from rap_contract.ops.logit import Logit

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: Logit, value: Value, references: References, context: Context) -> Value:
    """Log-odds in the numbers' own type; NaN stays NaN."""
    del references, context
    return value.with_values(torch.logit(elements(value), eps=op.eps))
