"""The built-in DLRM and its optimizers in float64, by autograd: what a runtime would learn if it did not round.

For `quality_bench.py`: one rank, at most one id a row and feature, SGD, Adagrad or Adam without decay on the dense part, rowwise Adagrad on the tables.

B rows, F sparse features, D dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from rap_contract.training import Adagrad, Adam, Optimizer, Sgd
from rap_trainer.batch import ModelBatch
from rap_trainer.model.shard import ShardedModel, table_name, table_weights
from torch.nn import functional
from torchrec.models.dlrm import DLRM


class Float64Dlrm:
    """Begins with a model's weights and leaves that model alone."""

    def __init__(self, model: ShardedModel, optimizer: Optimizer) -> None:
        dlrm: Any = next(module for module in model.module.modules() if isinstance(module, DLRM))
        self._parts = [list(_linears(part)) for part in (dlrm.dense_arch, dlrm.over_arch)]
        self._dense = [
            t.detach().double() for part in self._parts for layer in part for t in (layer.weight, layer.bias)
        ]
        self._names = list(dlrm.sparse_arch.sparse_feature_names)
        self._tables = {table_name(n): w.local_shards()[0].tensor.double() for n, w in table_weights(model.module)}
        self._squares = [torch.zeros_like(tensor) for tensor in self._dense]
        self._means = [torch.zeros_like(tensor) for tensor in self._dense]
        self._steps = 0
        self._row_squares = {name: table.new_zeros(table.shape[0]) for name, table in self._tables.items()}
        _, self._of_dense = optimizer.dense.chosen
        _, self._of_tables = optimizer.embedding.chosen
        assert isinstance(self._of_tables, Adagrad), "only rowwise Adagrad"
        assert isinstance(self._of_dense, Sgd | Adagrad | Adam), "only SGD, Adagrad and Adam"

    def logits(self, batch: ModelBatch) -> torch.Tensor:
        """logits_B."""
        return self._forward(batch.dense_BD.double(), self._gathered(self._ids(batch)))

    def train(self, batch: ModelBatch) -> None:
        """One step on the mean loss of the batch."""
        ids = self._ids(batch)
        pooled_BFD = self._gathered(ids).requires_grad_()
        self._dense = [tensor.detach().requires_grad_() for tensor in self._dense]
        logits_B = self._forward(batch.dense_BD.double(), pooled_BFD)
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B.double())
        *grads, grad_BFD = torch.autograd.grad(loss, [*self._dense, pooled_BFD])
        self._steps += 1
        with torch.no_grad():
            for tensor, mean, square, grad in zip(self._dense, self._means, self._squares, grads, strict=True):
                tensor.sub_(self._change(grad, mean, square))
            for k, (name, ids_B) in enumerate(zip(self._names, ids, strict=True)):
                self._update_rows(name, ids_B, grad_BFD[:, k])

    def _change(self, grad: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """What a step takes off a dense tensor; advances its state."""
        rule = self._of_dense
        if isinstance(rule, Adagrad):
            return rule.lr * grad / (square.addcmul_(grad, grad).sqrt() + rule.eps)
        if isinstance(rule, Sgd):
            return rule.lr * grad
        assert isinstance(rule, Adam)
        beta1, beta2 = rule.beta1, rule.beta2
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = (square / (1 - beta2**self._steps)).sqrt() + rule.eps
        return rule.lr / (1 - beta1**self._steps) * mean / scale

    def _update_rows(self, name: str, ids_B: torch.Tensor, grad_BD: torch.Tensor) -> None:
        here, rule, squares = ids_B >= 0, self._of_tables, self._row_squares[name]
        assert isinstance(rule, Adagrad)
        rows, places = torch.unique(ids_B[here], return_inverse=True)
        grads = grad_BD.new_zeros(len(rows), grad_BD.shape[1]).index_add_(0, places, grad_BD[here])
        squares[rows] += grads.square().mean(1)
        self._tables[name][rows] -= rule.lr * grads / (squares[rows].sqrt() + rule.eps).unsqueeze(1)

    def _forward(self, dense_BD: torch.Tensor, pooled_BFD: torch.Tensor) -> torch.Tensor:
        num_bottom = 2 * len(self._parts[0])
        bottom_BD = _mlp(dense_BD, self._dense[:num_bottom]).relu()
        features = torch.cat([bottom_BD.unsqueeze(1), pooled_BFD], 1)
        pairs = features @ features.transpose(1, 2)
        upper = torch.triu_indices(pairs.shape[1], pairs.shape[1], 1, device=pairs.device)
        return _mlp(torch.cat([bottom_BD, pairs[:, upper[0], upper[1]]], 1), self._dense[num_bottom:]).squeeze(1)

    def _ids(self, batch: ModelBatch) -> list[torch.Tensor]:
        """Each feature's id by row; -1 where it is absent."""
        found = []
        for name in self._names:
            lengths_B, values_N = batch.sparse[name].lengths(), batch.sparse[name].values()
            ids_B = torch.full_like(lengths_B, -1, dtype=torch.int64)
            ids_B[lengths_B == 1] = values_N
            found.append(ids_B)
        return found

    def _gathered(self, ids: list[torch.Tensor]) -> torch.Tensor:
        columns = [
            self._tables[name][ids_B.clamp(min=0)] * (ids_B >= 0).unsqueeze(1)
            for name, ids_B in zip(self._names, ids, strict=True)
        ]
        return torch.stack(columns, 1)


def _linears(part: torch.nn.Module) -> Iterator[torch.nn.Linear]:
    return (module for module in part.modules() if isinstance(module, torch.nn.Linear))


def _mlp(x: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
    """ReLU between the layers, none after the last."""
    pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
    for i, (weight, bias) in enumerate(pairs):
        x = functional.linear(x.relu() if i else x, weight, bias)
    return x
