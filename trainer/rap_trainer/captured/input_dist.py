"""The static input distribution: TorchRec's owner order, found once, and the tables' inputs as fixed buffers.

One id a row and feature (what `firstx(1)`, `bucketize` and scalar columns give): every split, length and offset is
known beforehand, so nothing is read on the host. Jagged lists: see jagged_inputs.py. Bit-equal to what TorchRec's own
input dist delivers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.sharding.dp_sharding import BaseDpEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import BaseTwEmbeddingSharding

from rap_trainer.captured.blocks import Blocks, Part, feature_order


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What a rank looks up of a feature."""

    feature: str
    column: int
    """First column of the embedding."""
    width: int
    is_whole: bool


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Which rank looks up which features, in the order of its lookup. A value."""

    looked_up: tuple[tuple[Columns, ...], ...]
    """By rank; features of tables that are split by columns several times."""
    replicated: tuple[str, ...] = ()
    """Features of tables that every rank has, in the order of that lookup."""

    @property
    def owned(self) -> tuple[tuple[str, ...], ...]:
        """Features each rank is sent, in the order of its lookup."""
        return tuple(tuple(columns.feature for columns in rank) for rank in self.looked_up)

    @property
    def whole(self) -> tuple[tuple[str, ...], ...]:
        """Features of each rank's whole tables."""
        return tuple(tuple(columns.feature for columns in rank if columns.is_whole) for rank in self.looked_up)

    @property
    def split(self) -> tuple[str, ...]:
        """Features of tables that are split by columns, each once."""
        return tuple(dict.fromkeys(c.feature for rank in self.looked_up for c in rank if not c.is_whole))

    @property
    def keys(self) -> tuple[str, ...]:
        """Every feature once: of whole tables rank-major, of split ones, of replicated ones."""
        return (*(name for names in self.whole for name in names), *self.split, *self.replicated)

    def blocks(self, names: tuple[str, ...], *, rank: int, batch_size: int, dim: int, spare_rows: int = 0) -> Blocks:
        """The exchange's shape for a model with its features in the order `names`."""
        place = {name: i for i, name in enumerate(self.keys)}
        parts: list[Part] = []
        for owner, columns in enumerate(self.looked_up):
            starts = accumulate((each.width for each in columns), initial=0)
            parts += [
                Part(feature=place[each.feature], owner=owner, start=start, column=each.column, width=each.width)
                for start, each in zip(starts, columns, strict=False)
            ]
        return Blocks(
            order=feature_order([self.keys], names),
            counts=tuple(len(features) for features in self.whole),
            rank=rank,
            batch_size=batch_size,
            dim=dim,
            spare_rows=spare_rows,
            parts=tuple(parts),
            num_replicated=len(self.replicated),
        )


def ownership_of(sharded: Any) -> Ownership:
    """What a ShardedEmbeddingBagCollection has planned. Raises ValueError for tables whose rows are split, or in lookups of two kinds."""
    owners = [sharding for sharding in sharded._embedding_shardings if isinstance(sharding, BaseTwEmbeddingSharding)]
    copies = [sharding for sharding in sharded._embedding_shardings if isinstance(sharding, BaseDpEmbeddingSharding)]
    if len(owners) > 1 or len(owners) + len(copies) != len(sharded._embedding_shardings):
        raise ValueError(f"sharding {', '.join(sorted(sharded._sharding_types))} has no captured form")
    num_ranks = dist.get_world_size(sharded._env.process_group)
    per_rank = owners[0]._grouped_embedding_configs_per_rank if owners else [[] for _ in range(num_ranks)]
    return Ownership(
        looked_up=tuple(tuple(each for group in groups for each in _columns(group)) for groups in per_rank),
        replicated=tuple(name for sharding in copies for name in sharding.feature_names()),
    )


def _columns(group: Any) -> Iterator[Columns]:
    for table in group.embedding_tables:
        first = 0 if table.local_metadata is None else table.local_metadata.shard_offsets[1]
        whole = table.local_cols == table.embedding_dim
        for name in table.feature_names:
            yield Columns(feature=name, column=first, width=table.local_cols, is_whole=whole)


class OneHotInputs:
    """The lookup's input of one slot: ids change in place, lengths and offsets never do."""

    def __init__(self, features: tuple[str, ...], ids_N: torch.Tensor, *, rows: int) -> None:
        """`ids_N`: [T * rows] int64, the buffer the exchange writes; `rows`: W * B."""
        N, T, device = ids_N.numel(), len(features), ids_N.device
        if T * rows != N:
            raise ValueError(f"{T} features of {rows} rows make {T * rows} ids, the buffer has {N}")
        self.kjt = KeyedJaggedTensor(
            keys=list(features),
            values=ids_N,
            lengths=torch.ones(N, dtype=torch.int32, device=device),
            offsets=torch.arange(N + 1, dtype=torch.int64, device=device),
            stride=rows,
            length_per_key=[rows] * T,
            offset_per_key=[rows * t for t in range(T + 1)],
        )

    @property
    def features(self) -> KJTList:
        """As a lookup of `compute_and_output_dist` takes it."""
        return KJTList([self.kjt])
