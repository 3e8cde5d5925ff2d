"""enumerate: elements become their positions 0..len-1."""

from __future__ import annotations

from rap_contract.ops.enumerate import Enumerate

from rap_trainer.ops.segments import places
from rap_trainer.ops.value import Context, Jagged, References


def apply(op: Enumerate, value: Jagged, references: References, context: Context) -> Jagged:
    """Positions, int64; weights stay."""
    del op, references, context
    return value.with_values(places(value.lengths_B, value.values_N.numel())[1])
