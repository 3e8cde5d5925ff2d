"""sample: keeps an element if a hash of its row id, its position and the salt falls below `rate`.

h = hash_128_to_64(u=hash_128_to_64(u=salt, l=twang_mix64(row id)), l=twang_mix64(position)), unsigned;
kept if floor(h / 2^11) < ceil(rate * 2^53): the share is exact to 2^-53, rate 1 keeps all, rate 0 none.
The same row gives the same sample wherever and whenever it is read.
"""

from __future__ import annotations

import math

import torch
from rap_contract.ops.sample import Sample

from rap_trainer.ops.hashing import hash_128_to_64, twang_mix64
from rap_trainer.ops.segments import places, select
from rap_trainer.ops.value import Context, Jagged, References

LOW_53_BITS = 2**53 - 1


def apply(op: Sample, value: Jagged, references: References, context: Context) -> Jagged:
    """Lists with the kept elements, weights with them."""
    del references
    rows_N, positions_N = places(value.lengths_B, value.values_N.numel())
    row_hash_B = hash_128_to_64(op.salt, twang_mix64(context.repeated_row_ids()))
    hash_N = hash_128_to_64(row_hash_B[rows_N], twang_mix64(positions_N))
    share_N = torch.bitwise_right_shift(hash_N, 11).bitwise_and_(LOW_53_BITS)
    return select(value, share_N < math.ceil(op.rate * 2**53))
