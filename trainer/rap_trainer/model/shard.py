"""Plans and shards a model over the ranks with TorchRec, and gives it its optimizers.

Tables are whole on a rank or split by columns, and then updated in their backward pass; or they have a copy on every rank, whose
gradients DistributedDataParallel averages and whose update is the dense optimizer's, as TorchRec has it. Parallelism is applied from outside to a finished model; the model knows nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJobSpec
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.training import EmbeddingOptimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingEnv, ShardingPlan, ShardingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from rap_trainer.model.initialise import initialise_table
from rap_trainer.model.optimizers import dense_optimizer, fused_optimizer, has_fused_kernel
from rap_trainer.model.replicated_lookup import look_up_copies
from rap_trainer.model.row_optimizers import RowOptimizer
from rap_trainer.world import World

HBM_SHARE = 0.9
"""Share of a GPU's memory the planner may fill with tables; activations take the rest. TorchRec's own default
reserves 15 % besides."""
PARTS, LEAST_COLUMNS = 4, 8
"""Of a table that is split by columns: the same on any number of ranks, as its optimizer's state is (rowwise Adagrad keeps a number a
row and part), of at least 32 bytes a row, a sector of the GPU's memory."""
KINDS = {
    "tableWise": ShardingType.TABLE_WISE,
    "columnWise": ShardingType.COLUMN_WISE,
    "dataParallel": ShardingType.DATA_PARALLEL,
}
"""A table's sharding by its name in a job."""


@dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """A model in training: sharded, initialised, with both optimizers."""

    module: DistributedModelParallel
    dense: KeyedOptimizerWrapper | None
    """None for a model without dense parameters."""
    rows: RowOptimizer | None
    """Optimizer of tables that have no fused kernel on this device."""
    plan: ShardingPlan
    iterations: torch.Tensor
    """int64 [1] on the CPU: optimizer steps, as Adam and LAMB count them; part of the checkpoint."""

    def forward(self, dense_BD: torch.Tensor, sparse: object) -> torch.Tensor:
        """logits_B."""
        logits: torch.Tensor = self.module(dense_BD, sparse)
        return logits

    def zero_grad(self) -> None:
        if self.dense is not None:
            self.dense.zero_grad(set_to_none=True)
        if self.rows is not None:
            self.rows.zero_grad()

    def update(self) -> None:
        """The optimizer step; fused tables have made theirs in the backward pass."""
        if self.dense is not None:
            self.dense.step()
        if self.rows is not None:
            self.rows.step(int(self.iterations) + 1)

    def restored(self) -> None:
        """Tells the fused kernels the iteration that was loaded; theirs is no part of TorchRec's state."""
        for kernel in fused_kernels(self.module):
            kernel.set_optimizer_step(int(self.iterations))


def shard_model(model: nn.Module, spec: RAPJobSpec, world: World) -> ShardedModel:
    """Shards the tables as the job says and replicates the rest. Collective. Raises InvalidDocument, PlannerError."""
    collections = [module for module in model.modules() if isinstance(module, EmbeddingBagCollection)]
    fused = has_fused_kernel(spec, world.device)
    graph, problems = compile_features(spec)
    if graph is None:
        raise InvalidDocument(problems)
    _check_sharding(graph, fused=fused)
    if fused:
        optimizer, parameters = fused_optimizer(spec.optimizer.embedding)
        for collection in collections:
            apply_optimizer_in_backward(optimizer, collection.parameters(), parameters)
    sharders: list[Any] = [EmbeddingBagCollectionSharder() if fused else _DenseSharder()]
    planner = EmbeddingShardingPlanner(topology=_topology(world), constraints=_constraints(graph, fused=fused))
    plan = planner.collective_plan(model, sharders, world.data_group)
    module = DistributedModelParallel(
        module=model,
        env=ShardingEnv.from_process_group(world.data_group),
        device=world.device,
        plan=plan,
        sharders=sharders,
    )
    for sharded in module.modules():
        if isinstance(sharded, ShardedEmbeddingBagCollection):
            for lookup in sharded._lookups:
                if isinstance(lookup, DistributedDataParallel):
                    look_up_copies(lookup)
    initialise_tables(module, seed=spec.trainer.seed)
    return ShardedModel(
        module=module,
        dense=_dense(module, spec, fused=fused),
        rows=None if fused else _rows(module, spec.optimizer.embedding, world),
        plan=plan,
        iterations=torch.zeros(1, dtype=torch.int64),
    )


def fused_kernels(module: nn.Module) -> Iterator[SplitTableBatchedEmbeddingBagsCodegen]:
    """FBGEMM's kernels that update tables with an iteration count."""
    for sharded in module.modules():
        if isinstance(sharded, ShardedEmbeddingBagCollection):
            for lookup in sharded._lookups:
                for part in lookup.modules():
                    if isinstance(part, SplitTableBatchedEmbeddingBagsCodegen) and hasattr(part, "iter"):
                        yield part


def table_weights(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name in the state dict, weight or ShardedTensor) of every table."""
    for name, tensor in module.state_dict().items():
        if ".embedding_bags." in f".{name}" and name.endswith(".weight"):
            yield name, tensor


def table_name(state_name: str) -> str:
    """The table whose weight has this name in a state dict."""
    return state_name.removesuffix(".weight").rpartition("embedding_bags.")[2]


def initialise_tables(module: nn.Module, *, seed: int) -> None:
    """Fills every table with its first weights, equal on any number of ranks."""
    for name, weight in table_weights(module):
        initialise_table(weight, table=table_name(name), seed=seed)


class _DenseSharder(EmbeddingBagCollectionSharder):
    """Shards tables whose gradients are kept for a RowOptimizer; TorchRec's own sharder no longer offers that."""

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        del sharding_type, compute_device_type
        return [EmbeddingComputeKernel.DENSE.value]


def _topology(world: World) -> Topology:
    if world.device.type == "cuda":
        memory_bytes = int(torch.cuda.get_device_properties(world.device).total_memory * HBM_SHARE)
        return Topology(
            world_size=world.size, compute_device="cuda", hbm_cap=memory_bytes, local_world_size=world.local_size
        )
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Topology(
        world_size=world.size,
        compute_device="cpu",
        ddr_cap=memory_bytes // world.local_size,
        local_world_size=world.local_size,
    )


def _constraints(graph: FeatureGraph, *, fused: bool) -> dict[str, ParameterConstraints]:
    """One kind of sharding for each table. Beside a table that is split by columns all are, in one part: a rank then has one lookup."""
    split = any(table.sharding == "columnWise" for table in graph.tables)
    found = {}
    for table in graph.tables:
        kind, columns = KINDS[table.sharding], None
        if kind is ShardingType.COLUMN_WISE:
            columns = max(LEAST_COLUMNS, -(-table.dim // PARTS))
        elif kind is ShardingType.TABLE_WISE and split:
            kind, columns = ShardingType.COLUMN_WISE, table.dim
        replicated = kind is ShardingType.DATA_PARALLEL
        kernel = EmbeddingComputeKernel.FUSED if fused and not replicated else EmbeddingComputeKernel.DENSE
        found[table.name] = ParameterConstraints(
            sharding_types=[kind.value], compute_kernels=[kernel.value], min_partition=columns
        )
    return found


def _check_sharding(graph: FeatureGraph, *, fused: bool) -> None:
    """Raises InvalidDocument for what cannot be trained here."""
    copied_dim: int | None = None
    for feature in graph.sparse:
        table = feature.table
        if table is None or table.sharding == "tableWise":
            continue
        if not fused:
            message = f"a {table.sharding} table needs an update that FBGEMM has a CPU kernel of"
            hint = "train on GPUs, use tableWise, or an optimizer of sgd, adagrad, rowwiseAdagrad without decay"
            raise InvalidDocument([Problem(path=(*feature.path, "table", "sharding"), message=message, hint=hint)])
        if table.sharding == "dataParallel":
            copied_dim = table.dim if copied_dim is None else copied_dim
            if table.dim != copied_dim:
                message = f"dataParallel tables have dims {copied_dim} and {table.dim}: they are looked up as one"
                hint = "give them one dim, or use tableWise for some"
                raise InvalidDocument([Problem(path=(*feature.path, "table", "dim"), message=message, hint=hint)])


def _dense(module: nn.Module, spec: RAPJobSpec, *, fused: bool) -> KeyedOptimizerWrapper | None:
    named = dict(in_backward_optimizer_filter(module.named_parameters()))
    if not fused:
        named = {name: parameter for name, parameter in named.items() if ".embedding_bags." not in f".{name}"}
    return KeyedOptimizerWrapper(named, dense_optimizer(spec.optimizer.dense)) if named else None


def _rows(module: nn.Module, spec: EmbeddingOptimizer, world: World) -> RowOptimizer:
    return RowOptimizer(spec, module, dict(table_weights(module)), world.data_group)
