"""ngram: all windows of m = min(n, len) consecutive elements, concatenated, or one hash a window.

hash: h = first id; h = hash_128_to_64(u=h, l=id) for each further one; the weight is the product.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from rap_contract.ops.ngram import Ngram

from rap_trainer.ops.hashing import hash_128_to_64
from rap_trainer.ops.segments import offsets_of, places, size_of, take
from rap_trainer.ops.value import Context, Jagged, References


def apply(op: Ngram, value: Jagged, references: References, context: Context) -> Jagged:
    """(len - m + 1) * m elements a list, or len - m + 1 hashes; none of an empty list."""
    del references, context
    window_B = value.lengths_B.clamp(max=op.n)
    windows_B = (value.lengths_B - window_B + 1).masked_fill(value.lengths_B == 0, 0)
    if op.combine == "hash":
        return _hashed(op, value, window_B, windows_B)
    lengths_B = windows_B * window_B
    num = value.values_N.numel()
    size = size_of(lengths_B, num * op.n)
    if op.n == 1:
        return value
    rows_M, positions_M = places(lengths_B, size)
    width_M = window_B[rows_M].clamp_(min=1)
    index_M = offsets_of(value.lengths_B)[rows_M] + positions_M // width_M + positions_M % width_M
    return take(value, index_M, lengths_B)


def _hashed(op: Ngram, value: Jagged, window_B: torch.Tensor, windows_B: torch.Tensor) -> Jagged:
    rows_M, positions_M = places(windows_B, size_of(windows_B, value.values_N.numel()))
    first_M = offsets_of(value.lengths_B)[rows_M] + positions_M
    ids = replace(value, values_N=value.values_N.to(torch.int64))
    result = take(ids, first_M, windows_B)
    window_M = window_B[rows_M]
    last = max(ids.values_N.numel() - 1, 0)
    for place in range(1, op.n):
        more_M = window_M > place
        index_M = (first_M + place).clamp_(0, last)
        hashed_M = hash_128_to_64(result.values_N, ids.values_N[index_M])
        weights_M = result.weights_N
        if weights_M is not None and ids.weights_N is not None:
            weights_M = torch.where(more_M, weights_M * ids.weights_N[index_M], weights_M)
        result = replace(result, values_N=torch.where(more_M, hashed_M, result.values_N), weights_N=weights_M)
    return result
