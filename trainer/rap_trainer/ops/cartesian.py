"""cartesian: hash_128_to_64(u=a, l=b) as int64 of each pair of two lists, all b for the first a first.

On an accelerator the result is allocated for `max` pairs a row.
"""

from __future__ import annotations

import torch
from rap_contract.ops.cartesian import Cartesian

from rap_trainer.ops.hashing import hash_128_to_64
from rap_trainer.ops.segments import offsets_of, places, size_of, take
from rap_trainer.ops.value import Context, Jagged, References


def apply(op: Cartesian, value: Jagged, references: References, context: Context) -> Jagged:
    """The first `max` pairs of each row; a pair's weight is the product of its two. A row null in either is null."""
    del context
    other = references[op.with_]
    assert isinstance(other, Jagged)
    pairs_B = (value.lengths_B.to(torch.int64) * other.lengths_B).clamp_(max=op.max).to(torch.int32)
    bound = 0 if 0 in (value.values_N.numel(), other.values_N.numel()) else op.max * pairs_B.numel()
    rows_M, positions_M = places(pairs_B, size_of(pairs_B, bound))
    width_M = other.lengths_B[rows_M].clamp_(min=1)
    a = take(value, offsets_of(value.lengths_B)[rows_M] + positions_M // width_M, pairs_B)
    b = take(other, offsets_of(other.lengths_B)[rows_M] + positions_M % width_M, pairs_B)
    weights = [each for each in (a.weights_N, b.weights_N) if each is not None]
    nulls = [each for each in (a.nulls_B, b.nulls_B) if each is not None]
    return Jagged(
        values_N=hash_128_to_64(a.values_N.to(torch.int64), b.values_N.to(torch.int64)),
        lengths_B=pairs_B,
        weights_N=weights[0] * weights[1] if len(weights) == 2 else weights[0] if weights else None,
        nulls_B=nulls[0] | nulls[1] if len(nulls) == 2 else nulls[0] if nulls else None,
    )
