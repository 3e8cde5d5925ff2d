"""firstx: the first min(n, len) elements of each list."""

from __future__ import annotations

from rap_contract.ops.firstx import Firstx

from rap_trainer.ops import segments
from rap_trainer.ops.segments import from_starts, offsets_of, size_of, take
from rap_trainer.ops.value import Context, Jagged, References


def apply(op: Firstx, value: Jagged, references: References, context: Context) -> Jagged:
    """Shorter lists, weights with them."""
    del references, context
    num = value.values_N.numel()
    if segments.host_may_look(value.lengths_B) and (num == 0 or int(value.lengths_B.amax()) <= op.n):
        return value
    lengths_B = value.lengths_B.clamp(max=op.n)
    size = size_of(lengths_B, min(num, op.n * lengths_B.numel()))
    return take(value, from_starts(offsets_of(value.lengths_B)[:-1], lengths_B, size), lengths_B)
