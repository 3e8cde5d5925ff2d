"""Optimizers of embedding tables on a CPU, for those that FBGEMM has no fused CPU kernel for.

They update the rows a batch has touched and no others, by the formulas of FBGEMM's GPU kernels, so that a job trains
alike on both and its checkpoints go from one to the other. Their cost a step grows with the whole table (a dense gradient
is cleared and filled), so they suit trials and tests, not large tables.

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
from typing import Any, cast

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen
from rap_contract.training import Adagrad, Adam, EmbeddingOptimizer
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
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
class _Kernel:
    """Tables that are looked up together."""

    module: DenseTableBatchedEmbeddingBagsCodegen
    tables: tuple[str, ...]
    touched: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """(indices, offsets) of the lookups since the last step."""

    def note(self, _: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        indices = named["indices"] if "indices" in named else arguments[0]
        offsets = named["offsets"] if "offsets" in named else arguments[1]
        self.touched.append((indices, offsets))

    def rows(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(table, its touched rows, each once)."""
        found: dict[int, list[torch.Tensor]] = {}
        features = cast(list[int], self.module.hash_size_cumsum.tolist())
        starts = [sum(rows for rows, _ in self.module.embedding_specs[:t]) for t in range(len(self.tables))]
        for indices, offsets in self.touched:
            num_rows = (offsets.numel() - 1) // max(1, len(features) - 1)
            for feature, start in enumerate(features[:-1]):
                first, last = int(offsets[feature * num_rows]), int(offsets[(feature + 1) * num_rows])
                table = max(t for t, begin in enumerate(starts) if begin <= start)
                found.setdefault(table, []).append(indices[first:last])
        self.touched.clear()
        for table, parts in found.items():
            yield table, torch.cat(parts).unique()  # type: ignore[no-untyped-call]  # torch leaves it untyped


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
        """Drops the gradients and what was touched, also by lookups that were not learned from."""
        for kernel in self._kernels:
            kernel.module.weights.grad = None
            kernel.touched.clear()

    @torch.no_grad()
    def step(self, iteration: int) -> None:
        """Updates the touched rows; `iteration` counts from 1."""
        for kernel in self._kernels:
            gradient = kernel.module.weights.grad
            if gradient is None:
                continue
            offsets = kernel.module.weights_physical_offsets
            for index, rows_R in kernel.rows():
                table = kernel.tables[index]
                weight = self._weights[table]
                gradient_ED = gradient[offsets[index] : offsets[index + 1]].view_as(weight)
                weight_RD = weight[rows_R].float()
                moments = self._moments[table]
                parts = [moment[rows_R] for moment in moments]
                change_RD = self._change(weight_RD, gradient_ED[rows_R].float(), parts, iteration)
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
                    kernel.module.register_forward_pre_hook(kernel.note, with_kwargs=True)
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
