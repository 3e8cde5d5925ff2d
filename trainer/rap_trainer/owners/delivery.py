"""What an owner has made for all ranks takes its place among the ids that TorchRec's exchange delivers.

The exchange still runs, with empty lists for these features, because it tells the ranks each other's batch sizes. Only for tables
that one rank holds whole. Not here: making the ids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection


class Delivery:
    """Of one model. `next` is taken by the model's next forward pass."""

    def __init__(self, module: nn.Module) -> None:
        """Raises ValueError for a model whose tables are not all in one collection."""
        sharded = [each for each in module.modules() if isinstance(each, ShardedEmbeddingBagCollection)]
        if len(sharded) != 1 or len(sharded[0]._lookups) != 1:
            raise ValueError(f"tables are in {len(sharded)} collections; table owners preprocess for exactly one")
        self.next: KeyedJaggedTensor | None = None
        looked_up: Any = sharded[0].compute_and_output_dist

        def with_owned(ctx: Any, arrived: KJTList) -> Any:
            owned, self.next = self.next, None
            return looked_up(ctx, arrived if owned is None else KJTList([merged(arrived[0], owned)]))

        sharded[0].compute_and_output_dist = with_owned


def merged(arrived: KeyedJaggedTensor, owned: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """`arrived` with the lists of `owned` in place of its empty ones, for the same rows in the same order."""
    if arrived.stride() != owned.stride():
        raise ValueError(f"{owned.stride()} rows were preprocessed for others, {arrived.stride()} have arrived")
    own, made = arrived.to_dict(), owned.to_dict()
    parts = [made.get(name, own[name]) for name in arrived.keys()]  # noqa: SIM118  # a list, not a mapping's keys
    weights = None
    if arrived.weights_or_none() is not None:
        weights = torch.cat([_weights(part) for part in parts])
    return KeyedJaggedTensor(
        keys=arrived.keys(),
        values=torch.cat([part.values() for part in parts]),
        weights=weights,
        lengths=torch.cat([part.lengths() for part in parts]),
        stride=arrived.stride(),
    )


def _weights(part: Any) -> torch.Tensor:
    weights: torch.Tensor | None = part.weights_or_none()
    return torch.ones(part.values().numel(), device=part.values().device) if weights is None else weights
