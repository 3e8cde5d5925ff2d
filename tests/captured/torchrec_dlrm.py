"""A small TorchRec DLRM, sharded table-wise, and what the tests of the captured step need of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torchrec
from rap_trainer.captured.dense_part import Mlps
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward


@dataclass(frozen=True, kw_only=True)
class Sizes:
    batch_size: int = 8
    num_dense: int = 5
    num_sparse: int = 5
    rows: int = 50
    dim: int = 8
    bottom: tuple[int, ...] = (12, 8)
    top: tuple[int, ...] = (16, 10, 1)


@dataclass(frozen=True)
class Model:
    dmp: DistributedModelParallel
    sizes: Sizes
    names: tuple[str, ...]

    @property
    def dlrm(self) -> Any:
        return self.dmp.module

    @property
    def sharded(self) -> Any:
        return self.dlrm.sparse_arch.embedding_bag_collection

    @property
    def mlps(self) -> Mlps:
        def linears(part: nn.Module) -> list[nn.Linear]:
            return [module for module in part.modules() if isinstance(module, nn.Linear)]

        return Mlps(bottom=linears(self.dlrm.dense_arch), top=linears(self.dlrm.over_arch))

    def dense_parameters(self) -> list[torch.Tensor]:
        return [p for layer in (*self.mlps.bottom, *self.mlps.top) for p in (layer.weight, layer.bias)]

    def tables(self) -> dict[str, torch.Tensor]:
        """This rank's shards by name."""
        state = self.dmp.state_dict()
        return {
            name: tensor.local_shards()[0].tensor if hasattr(tensor, "local_shards") else tensor
            for name, tensor in state.items()
            if "embedding_bags" in name and (not hasattr(tensor, "local_shards") or tensor.local_shards())
        }

    def kjt(self, ids_FB: torch.Tensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=list(self.names),
            values=ids_FB.reshape(-1),
            lengths=torch.ones(ids_FB.numel(), dtype=torch.int32, device=ids_FB.device),
        )


def build(sizes: Sizes, device: torch.device, *, owners: Sequence[int] | None = None, lr: float = 0.05) -> Model:
    """Equal on all ranks and at each call. `owners`: the rank of each table."""
    names = tuple(f"f{i}" for i in range(sizes.num_sparse))
    configs = [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=sizes.dim, num_embeddings=sizes.rows, feature_names=[name])
        for i, name in enumerate(names)
    ]
    torch.manual_seed(0)
    dlrm = DLRM(
        embedding_bag_collection=EmbeddingBagCollection(device=torch.device("meta"), tables=configs),
        dense_in_features=sizes.num_dense,
        dense_arch_layer_sizes=list(sizes.bottom),
        over_arch_layer_sizes=list(sizes.top),
        dense_device=torch.device("cpu"),
    )
    apply_optimizer_in_backward(torchrec.optim.RowWiseAdagrad, dlrm.sparse_arch.parameters(), {"lr": lr})
    world = dist.get_world_size()
    sharder = EmbeddingBagCollectionSharder()
    ranks = owners or [i % world for i in range(sizes.num_sparse)]
    per_table = {f"t{i}": table_wise(rank=rank) for i, rank in enumerate(ranks)}
    plan = construct_module_sharding_plan(
        dlrm.sparse_arch.embedding_bag_collection,
        per_table,
        sharder=sharder,
        local_size=world,
        world_size=world,
        device_type=device.type,
    )
    dmp = DistributedModelParallel(
        module=dlrm,
        device=device,
        plan=ShardingPlan({"sparse_arch.embedding_bag_collection": plan}),
        sharders=[sharder],
        init_data_parallel=False,
    )
    dlrm_module = dmp.module
    dlrm_module.inter_arch.triu_indices = dlrm_module.inter_arch.triu_indices.to(device)
    model = Model(dmp, sizes, names)
    with torch.no_grad():
        for name, tensor in sorted(model.tables().items()):
            generator = torch.Generator().manual_seed(sum(name.encode()))
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.4 - 0.2)
    return model
