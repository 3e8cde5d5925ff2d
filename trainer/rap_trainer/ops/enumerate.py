"""enumerate: elements become their positions 0..len-1."""

from __future__ import annotations

import torch
from rap_contract.ops.enumerate import Enumerate

from rap_trainer.ops.segments import from_starts
from rap_trainer.ops.value import Context, Jagged, References


def apply(op: Enumerate, value: Jagged, references: References, context: Context) -> Jagged:
    """Positions, int64; weights stay."""
    del op, references, context
    starts_B = torch.zeros_like(value.lengths_B)
    return value.with_values(from_starts(starts_B, value.lengths_B, value.values_N.numel()))
