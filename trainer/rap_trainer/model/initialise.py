"""Gives every table weights that depend on the seed and the table's name alone.

So a job starts from the same model on any number of ranks, whatever the sharding.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor

CHUNK_ROWS = 65_536
"""Rows drawn at once, each chunk from a generator of its own, so that a shard draws only what it holds."""


def initialise_table(weight: torch.Tensor | ShardedTensor, *, table: str, seed: int) -> None:
    """Fills a [rows, dim] weight, or this rank's shards of it, in place: uniform in +-1/sqrt(rows)."""
    num_rows, dim = weight.size()
    bound = 1 / math.sqrt(num_rows)
    if not isinstance(weight, ShardedTensor):
        _fill(weight, (0, 0), dim=dim, bound=bound, key=(table, seed))
        return
    for shard in weight.local_shards():
        offsets = tuple(shard.metadata.shard_offsets)
        _fill(shard.tensor, (offsets[0], offsets[1]), dim=dim, bound=bound, key=(table, seed))


@torch.no_grad()
def _fill(part_RD: torch.Tensor, offsets: tuple[int, int], *, dim: int, bound: float, key: tuple[str, int]) -> None:
    first, column = offsets
    num_rows, num_columns = part_RD.shape
    for chunk in range(first // CHUNK_ROWS, -(-(first + num_rows) // CHUNK_ROWS)):
        start = chunk * CHUNK_ROWS
        low, high = max(first, start), min(first + num_rows, start + CHUNK_ROWS)
        generator = torch.Generator().manual_seed(_seed(*key, chunk))
        drawn_RD = torch.empty(high - start, dim).uniform_(-bound, bound, generator=generator)
        part_RD[low - first : high - first].copy_(drawn_RD[low - start :, column : column + num_columns])


def _seed(table: str, seed: int, chunk: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{table}/{chunk}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
