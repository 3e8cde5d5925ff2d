"""Optimizers of embedding tables on a CPU, for those that FBGEMM has no fused CPU kernel for.

They update the rows a batch has touched and no others, by the formulas of FBGEMM's GPU kernels, so that a job trains
alike on both and its checkpoints go from one to the other. A lookup copies the rows it touches and pools from the copy, so
gradients are of those rows alone and a step costs the same however large a table is.

R touched rows of a table, D columns. Formulas, with g the gradient, t the step, wd the weight decay:

    sgd                  w -= lr (g + wd w)
    adagrad              g += wd w;  m += g^2;  w -= lr g / (sqrt(m) + eps)
    rowwise_adagrad      g += wd w;  m += mean_D(g^2);  w -= lr g / (sqrt(m) + eps)
    adam                 m1, m2 moments of g and g^2;  u = m1' / (sqrt(m2') + eps) + wd w;  w -= lr u
    partial_rowwise_adam the same with m2 a moment of mean_D(g^2)
    lamb                 the same as adam, then w -= lr |w| / |u| u, norms over the row

where m1' = m1 / (1 - beta1^t) and m2' = m2 / (1 - beta2^t).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    DenseTableBatchedEmbeddingBagsCodegen,
    PoolingMode,
)
from rap_contract.training import Adagrad, Adam, EmbeddingOptimizer
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.nn import functional as F
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

_MOMENTS: Mapping[str, Sequence[tuple[str, bool]]] = {
    "sgd": (),
    "adagrad": (("momentum1", False),),
    "rowwise_adagrad": (("momentum1", True),),
    "adam": (("momentum1", False), ("exp_avg_sq", False)),
    "partial_rowwise_adam": (("momentum1", False), ("exp_avg_sq", True)),
    "lamb": (("momentum1", False), ("exp_avg_sq", False)),
}
"""State by TorchRec's names, and whether it is one number a row."""


@dataclass(frozen=True, kw_only=True)
class _Touched:
    """Rows of a table that a lookup has copied; each once."""

    rows_R: torch.Tensor
    copy_RD: torch.Tensor
    """float32, a leaf that gets their gradient."""


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """Tables that are looked up together, in the place of FBGEMM's own lookup, whose gradients are as large as its tables."""

    module: DenseTableBatchedEmbeddingBagsCodegen
    tables: tuple[str, ...]
    touched: dict[int, list[_Touched]] = field(default_factory=dict)
    """By table, of the lookups since the last step."""

    def lookup(
        self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The pooled rows of every feature beside each other: [B, sum of D]."""
        starts = self.module.hash_size_cumsum.tolist()[:-1]
        num_rows = (offsets.numel() - 1) // len(starts)
        bounds = offsets[::num_rows].tolist() if num_rows else [0] * (len(starts) + 1)
        owners = self._tables_of(starts)
        weights = self.module.split_embedding_weights()
        pooled: list[torch.Tensor | None] = [None] * len(starts)
        for table in set(owners):
            mine = [feature for feature, owner in enumerate(owners) if owner == table]
            parts = [indices[bounds[feature] : bounds[feature + 1]] for feature in mine]
            rows_R, places = torch.cat(parts).unique(return_inverse=True)  # type: ignore[no-untyped-call]  # untyped in torch
            copy_RD = weights[table][rows_R].float() if len(rows_R) else weights[table][:1].float()
            copy_RD.requires_grad_()
            self.touched.setdefault(table, []).append(_Touched(rows_R=rows_R, copy_RD=copy_RD))
            for feature, places_N in zip(mine, places.split([len(part) for part in parts]), strict=True):
                first = bounds[feature]
                scores = None if per_sample_weights is None else per_sample_weights[first : bounds[feature + 1]].float()
                begins_B = offsets[feature * num_rows : (feature + 1) * num_rows] - first
                pooled[feature] = self._pooled(copy_RD, places_N, begins_B.to(places_N.dtype), scores)
        return torch.cat([part for part in pooled if part is not None], dim=1)

    def _pooled(
        self, copy_RD: torch.Tensor, places_N: torch.Tensor, begins_B: torch.Tensor, scores_N: torch.Tensor | None
    ) -> torch.Tensor:
        sums_BD = F.embedding_bag(places_N, copy_RD, begins_B, mode="sum", per_sample_weights=scores_N)
        if self.module.pooling_mode is not PoolingMode.MEAN:
            return sums_BD
        lengths_B = torch.diff(begins_B, append=begins_B.new_tensor([len(places_N)]))
        return sums_BD / lengths_B.clamp(min=1).unsqueeze(1)

    def _tables_of(self, starts: Sequence[int]) -> list[int]:
        """The table of each feature, by where it begins."""
        begins = [sum(rows for rows, _ in self.module.embedding_specs[:t]) for t in range(len(self.tables))]
        return [max(t for t, begin in enumerate(begins) if begin <= start) for start in starts]

    def gradients(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(table, its touched rows, each once, their gradients [R, D]) of all lookups that were learned from."""
        for table, lookups in self.touched.items():
            learned = [each for each in lookups if each.copy_RD.grad is not None and len(each.rows_R)]
            if not learned:
                continue
            rows_R = torch.cat([each.rows_R for each in learned])
            gradient_RD = torch.cat([each.copy_RD.grad for each in learned if each.copy_RD.grad is not None])
            if len(learned) > 1:
                rows_R, places = rows_R.unique(return_inverse=True)  # type: ignore[no-untyped-call]  # untyped in torch
                gradient_RD = torch.zeros_like(gradient_RD[: len(rows_R)]).index_add_(0, places, gradient_RD)
            yield table, rows_R, gradient_RD
        self.touched.clear()


class RowOptimizer:
    """The update of every table on this rank. Its state is in the checkpoint under TorchRec's names."""

    def __init__(
        self, spec: EmbeddingOptimizer, module: nn.Module, weights: Mapping[str, ShardedTensor], group: ProcessGroup
    ) -> None:
        """`weights`: by name in the state dict, every table of the model."""
        self._name, self._chosen = spec.chosen
        self._kernels = list(_kernels(module))
        self._state: dict[str, dict[str, ShardedTensor]] = {}
        self._moments: dict[str, tuple[torch.Tensor, ...]] = {}
        self._weights: dict[str, torch.Tensor] = {}
        for name, weight in weights.items():
            if not weight.local_shards():
                continue
            table = name.removesuffix(".weight").rpartition("embedding_bags.")[2]
            moments = {key: _moment(weight, rowwise, group) for key, rowwise in _MOMENTS[self._name]}
            self._state[name] = {f"{table}.{key}": moment for key, moment in moments.items()}
            self._moments[table] = tuple(moment.local_shards()[0].tensor for moment in moments.values())
            self._weights[table] = weight.local_shards()[0].tensor

    def state(self) -> Mapping[str, Mapping[str, ShardedTensor]]:
        """By name of the weight in the state dict, then by name of the state."""
        return self._state

    def zero_grad(self) -> None:
        """Drops what was touched, also by lookups that were not learned from."""
        for kernel in self._kernels:
            kernel.touched.clear()

    @torch.no_grad()
    def step(self, iteration: int) -> None:
        """Updates the touched rows; `iteration` counts from 1."""
        for kernel in self._kernels:
            for index, rows_R, gradient_RD in kernel.gradients():
                table = kernel.tables[index]
                weight = self._weights[table]
                weight_RD = weight[rows_R].float()
                moments = self._moments[table]
                parts = [moment[rows_R] for moment in moments]
                change_RD = self._change(weight_RD, gradient_RD, parts, iteration)
                weight[rows_R] = (weight_RD - change_RD).to(weight.dtype)
                for moment, part in zip(moments, parts, strict=True):
                    moment[rows_R] = part

    def _change(
        self, weight_RD: torch.Tensor, gradient_RD: torch.Tensor, moments: list[torch.Tensor], iteration: int
    ) -> torch.Tensor:
        chosen = self._chosen
        match chosen:
            case Adam():
                return _adam(self._name, chosen, weight_RD, gradient_RD, moments, iteration)
            case Adagrad():
                gradient_RD = gradient_RD + chosen.weight_decay * weight_RD
                square = gradient_RD.square()
                rowwise = self._name == "rowwise_adagrad"
                moments[0] += square.mean(1) if rowwise else square
                scale = moments[0].sqrt() + chosen.eps
                return chosen.lr * gradient_RD / (scale.unsqueeze(1) if rowwise else scale)
        lr, decay = cast(float, getattr(chosen, "lr")), cast(float, getattr(chosen, "weight_decay"))  # noqa: B009
        return lr * (gradient_RD + decay * weight_RD)


def _adam(
    name: str,
    chosen: Adam,
    weight_RD: torch.Tensor,
    gradient_RD: torch.Tensor,
    moments: list[torch.Tensor],
    iteration: int,
) -> torch.Tensor:
    rowwise = name == "partial_rowwise_adam"
    square = gradient_RD.square()
    moments[0] = chosen.beta1 * moments[0] + (1 - chosen.beta1) * gradient_RD
    moments[1] = chosen.beta2 * moments[1] + (1 - chosen.beta2) * (square.mean(1) if rowwise else square)
    first_RD = moments[0] / (1 - chosen.beta1**iteration)
    second = (moments[1] / (1 - chosen.beta2**iteration)).sqrt() + chosen.eps
    update_RD = first_RD / (second.unsqueeze(1) if rowwise else second) + chosen.weight_decay * weight_RD
    if name != "lamb":
        return chosen.lr * update_RD
    norm_R = update_RD.norm(dim=1)
    ratio_R = torch.where(norm_R > 0, weight_RD.norm(dim=1) / norm_R, torch.ones_like(norm_R))
    return chosen.lr * ratio_R.unsqueeze(1) * update_RD


def _kernels(module: nn.Module) -> Iterator[_Kernel]:
    for sharded in module.modules():
        if not isinstance(sharded, ShardedEmbeddingBagCollection):
            continue
        for lookup in sharded._lookups:
            for part in lookup.modules():
                if isinstance(part, BatchedDenseEmbeddingBag):
                    kernel = _Kernel(
                        module=part.emb_module, tables=tuple(table.name for table in part._config.embedding_tables)
                    )
                    kernel.module.forward = kernel.lookup
                    yield kernel


def _moment(weight: ShardedTensor, rowwise: bool, group: ProcessGroup) -> ShardedTensor:
    """Zeros shaped like a table-wise weight, or one number a row of it."""
    metadata = copy.deepcopy(weight.metadata())
    metadata.tensor_properties.dtype = torch.float32
    assert len(metadata.shards_metadata) == 1, "tables are sharded table-wise"
    if rowwise:
        metadata.size = torch.Size(metadata.size[:1])
        metadata.shards_metadata[0].shard_sizes = metadata.shards_metadata[0].shard_sizes[:1]
        metadata.shards_metadata[0].shard_offsets = [0]
    local = weight.local_shards()[0].tensor
    zeros = torch.zeros(tuple(metadata.size), dtype=torch.float32, device=local.device)
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(zeros, metadata.shards_metadata[0])], sharded_tensor_metadata=metadata, process_group=group
    )
