"""The static input distribution: TorchRec's owner order, found once, and the tables' inputs as fixed buffers.

One id a row and feature (what `firstx(1)`, `bucketize` and scalar columns give): every split, length and offset is
known beforehand, so nothing is read on the host. Jagged lists: see capacity.py. Bit-equal to what TorchRec's own
input dist delivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding_types import KJTList

from rap_trainer.captured.blocks import feature_order


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Which rank looks up which features, in the order of its lookup. A value."""

    owned: tuple[tuple[str, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(features) for features in self.owned)

    def order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Rank-major indices into `names`."""
        return feature_order(self.owned, names)


def ownership_of(sharded: Any) -> Ownership:
    """What a ShardedEmbeddingBagCollection with one kind of sharding has planned."""
    (sharding,) = sharded._embedding_shardings
    return Ownership(owned=tuple(tuple(names) for names in sharding.feature_names_per_rank()))


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
