"""Models as a user's package would make them, for `spec.model.factory`."""

from __future__ import annotations

from typing import cast

import torch
from rap_contract.job import RAPJobSpec
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor


class Wide(nn.Module):
    """A linear model over the numbers and the pooled embeddings."""

    def __init__(self, tables: EmbeddingBagCollection, num_dense: int) -> None:
        super().__init__()
        self.tables = tables
        width = sum(len(config.feature_names) * config.embedding_dim for config in tables.embedding_bag_configs())
        self.head = nn.Linear(num_dense + width, 1)

    def forward(self, dense_BD: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """logits_B."""
        joined = torch.cat([dense_BD, self.tables(sparse).values()], dim=1)
        return cast(torch.Tensor, self.head(joined)).squeeze(1)


def build(spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> nn.Module:
    """A usable factory."""
    del spec
    return Wide(tables, num_dense)


def without_tables(spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> nn.Module:
    """Forgets the tables."""
    del spec, tables
    return nn.Linear(num_dense, 1)


def no_module(spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> int:
    """Returns something else."""
    del spec, tables
    return num_dense
