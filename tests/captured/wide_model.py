"""A model of a factory, nothing like a DLRM: embeddings and dense features side by side, normalised, through one MLP."""

from __future__ import annotations

import torch
from rap_contract.job import RAPJobSpec
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor


class WideModel(nn.Module):
    def __init__(self, tables: EmbeddingBagCollection, num_dense: int) -> None:
        super().__init__()
        self.tables = tables
        self.names = [name for config in tables.embedding_bag_configs() for name in config.feature_names]
        width = sum(config.embedding_dim for config in tables.embedding_bag_configs())
        self.norm = nn.BatchNorm1d(num_dense)
        self.mlp = nn.Sequential(nn.Linear(num_dense + width, 32), nn.SiLU(), nn.Linear(32, 1, bias=False))

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        pooled = self.tables(sparse)
        columns = [self.norm(dense), *(pooled[name] for name in self.names)]
        logits: torch.Tensor = self.mlp(torch.cat(columns, 1))
        return logits.squeeze(1)


class PeekingModel(WideModel):
    """Looks at the ids themselves."""

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        logits: torch.Tensor = super().forward(dense, sparse) + sparse.lengths().sum()
        return logits


def build(spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> nn.Module:
    del spec
    return WideModel(tables, num_dense)


def peeking(spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> nn.Module:
    del spec
    return PeekingModel(tables, num_dense)
