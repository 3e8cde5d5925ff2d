"""Builds the captured step's parts from a sharded model, or says why it cannot.

TorchRec keeps the tables, their shards and their fused update; the dense parameters become views of flat buffers that
the model's own optimizer shares, so that a checkpoint is the same whichever runtime wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.composable.table_batched_embedding_slice import TableBatchedEmbeddingSlice
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.models.dlrm import DLRM

from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.choose_exchange import make_exchange
from rap_trainer.captured.dense_optimizer import FlatOptimizer, rule_of
from rap_trainer.captured.dense_part import DensePart, Mlps
from rap_trainer.captured.exchange import Exchange
from rap_trainer.captured.input_dist import Ownership, ownership_of
from rap_trainer.captured.jagged_inputs import JaggedInputs, Received
from rap_trainer.captured.lanes import Lanes
from rap_trainer.captured.list_exchange import ListExchange
from rap_trainer.captured.replicated import ReplicatedTables
from rap_trainer.captured.row_lookup import RowLookup, row_lookup
from rap_trainer.captured.schedule import Schedule
from rap_trainer.captured.slots import Slot, make_slots
from rap_trainer.captured.step import Preprocessor, TrainStep
from rap_trainer.captured.traced_part import TracedPart, without_tables
from rap_trainer.captured.watchdog import Progress
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World

SAFE_TABLE_OPTIMIZERS = ("EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD")
"""Fused optimizers that keep no step count: FBGEMM takes Adam's and LAMB's as a host value, which a graph would bake
into wrong bias corrections for ever, without an error."""
SPARE_ROWS = 1024
"""Behind a lookup's rows, which share what lists of ids leave of their room: 8.6 M ids of plan 4 at batch 4096."""
WRITTEN = ("tf32", "fp32")
"""Precisions of the dense part that is written for the GPU."""
DIMS = (16, 32, 64, 128, 256)
"""Columns of an embedding that the interaction's kernels take: a matrix product needs 16, shared memory holds no more."""


class CannotCapture(ValueError):
    """The model or job has no captured form; the reasons say why, the eager runtime takes it."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Everything a step's recipe needs but its preprocessing."""

    lookup: Any
    dense: DensePart | TracedPart
    optimizer: FlatOptimizer
    exchange: Exchange
    blocks: Blocks
    order: tuple[str, ...]
    """Sparse features as in `Ownership.keys`: the rows of a slot's ids."""
    slots: tuple[Slot, Slot]
    lanes: Lanes
    ownership: Ownership
    tail_rows: int
    """Of the table of this rank's last feature."""
    torch_optimizer: torch.optim.Optimizer
    """The model's own dense optimizer, whose state lies in the flat buffers."""
    lists: ListExchange | None = None
    """What moves ids where rows hold several."""
    rows: RowLookup | None = None
    """What looks up single ids straight into the buffers that are read."""

    def step(
        self,
        preprocessor: Preprocessor,
        schedule: Schedule,
        *,
        lists: ListExchange | None = None,
        score: Callable[[Slot], None] | None = None,
        progress: Progress | None = None,
    ) -> TrainStep:
        """The recipe of these parts with such preprocessing; options as of TrainStep."""
        return TrainStep(
            self.lookup,
            self.dense,
            self.optimizer,
            self.exchange,
            lanes=self.lanes,
            preprocessor=preprocessor,
            schedule=schedule,
            score=score,
            progress=progress,
            lists=lists,
            rows=self.rows,
        )

    def slots_with(self, lists: ListExchange) -> tuple[Slot, Slot]:
        """The slots with lists of ids in place of single ones."""
        first, second = (
            replace(
                slot,
                inputs=self._inputs(lists, slot.index),
                replicated=self._replicated(lists, slot.index),
                lists=lists.outgoing(slot.index),
                present_BS=None,  # an empty list is a sum of nothing
            )
            for slot in self.slots
        )
        return first, second

    def _inputs(self, lists: ListExchange, slot: int) -> JaggedInputs:
        blocks, layout = self.blocks, lists.layout
        received = Received(
            own=layout.owned[blocks.rank],
            own_room=layout.room[blocks.rank],
            split=layout.split,
            split_room=layout.split_room,
        )
        return JaggedInputs(
            self.ownership.owned[blocks.rank],
            lists.incoming(slot),
            world_size=blocks.world_size,
            batch_size=blocks.batch_size,
            spare_rows=blocks.spare_rows,
            tail_rows=self.tail_rows,
            received=received if layout.split else None,
        )

    def _replicated(self, lists: ListExchange, slot: int) -> JaggedInputs | None:
        tables = self.dense.tables
        if tables is None:
            return None
        inputs = JaggedInputs(
            self.ownership.replicated,
            lists.outgoing(slot).block(*lists.layout.block(-1)),
            world_size=1,
            batch_size=self.blocks.batch_size,
            spare_rows=self.blocks.spare_rows,
            tail_rows=tables.rows_of_last,
        )
        inputs.share_rest()  # a warm-up looks up before any batch is there, and PyTorch's lookup wants a bag for every id
        return inputs


def refusals(model: ShardedModel) -> tuple[str, ...]:
    """Why this model cannot be captured; empty if it can."""
    found: list[str] = []
    sharded = _all(model.module, ShardedEmbeddingBagCollection)
    if len(sharded) != 1:
        return (f"the model has {len(sharded)} sharded embedding bag collections, not one",)
    try:
        if not any(ownership_of(sharded[0]).looked_up):
            found.append("every rank has a copy of every table: there is nothing to exchange")
    except ValueError as error:
        found.append(str(error))
    for table in table_modules(sharded[0]):
        name = getattr(getattr(table, "optimizer", None), "name", type(table).__name__)
        if name not in SAFE_TABLE_OPTIMIZERS:
            found.append(f"table optimizer {name} takes its step count from the host, which a graph would bake")
        elif getattr(table.optimizer_args, "weight_decay", 0.0):
            found.append("weight decay of tables changes rows of padding")
    if model.dense is None:
        found.append("the model has no dense parameters")
    else:
        try:
            rule_of(torch_optimizer(model))
        except ValueError as error:
            found.append(str(error))
        types = {str(parameter.dtype) for parameter in _trained(model)} - {"torch.float32"}
        found += [f"dense parameters of {name}: only float32 is captured" for name in sorted(types)]
    dims = sorted({config.embedding_dim for config in sharded[0]._embedding_bag_configs})
    if len(dims) > 1:
        found.append(f"embeddings of dims {', '.join(map(str, dims))}: only one dim for all is captured")
    return tuple(dict.fromkeys(found))


def assemble(
    model: ShardedModel,
    world: World,
    *,
    batch_size: int,
    exchange: str = "auto",
    precision: str = "tf32",
    num_dense: int | None = None,
    ids_proven: bool = False,
    lists: bool = False,
    direct: bool = False,
) -> Assembly:
    """The parts for one batch size. Collective. Raises CannotCapture.

    `exchange`: auto (the faster one here), copy-engine, nccl. `num_dense`: dense features, where the model is not the built-in
    DLRM. `ids_proven`: preprocessing guarantees that every id is a row of its table, so the tables need not check again.
    `lists`: rows may hold several ids. `direct`: single ids are looked up straight into the buffers that are read, where they can be.
    """
    reasons = refusals(model)
    if lists and not reasons:
        reasons = _refusals_of_lists(_all(model.module, ShardedEmbeddingBagCollection)[0])
    if reasons:
        raise CannotCapture(reasons)
    dlrm, (sharded,) = _find(model.module, DLRM), _all(model.module, ShardedEmbeddingBagCollection)
    if ids_proven:
        _skip_bounds_check(sharded)
    _learn_no_weights(sharded)
    ownership = ownership_of(sharded)
    blocks = ownership.blocks(
        ownership.keys if dlrm is None else tuple(dlrm.sparse_arch.sparse_feature_names),
        rank=world.rank,
        batch_size=batch_size,
        dim=sharded._embedding_bag_configs[0].embedding_dim,
        spare_rows=SPARE_ROWS if lists else 0,
    )
    chosen = make_exchange(exchange, blocks, world)
    tables = ReplicatedTables(sharded, blocks) if ownership.replicated else None
    dense: DensePart | TracedPart
    if precision in WRITTEN and (written := _written(dlrm, blocks.dim)) is not None:
        dense = DensePart(written, blocks, allocate=chosen.allocate_grads, precision=precision, tables=tables)
    else:
        part = partial(TracedPart, allocate=chosen.allocate_grads, precision=precision, tables=tables)
        dense = _traced(model, ownership.keys, blocks, part=partial(part, num_dense=_num_dense(dlrm, num_dense)))
    rows = row_lookup(table_modules(sharded), blocks, chosen, world.device) if direct and ids_proven else None
    optimizer = FlatOptimizer(rule_of(torch_optimizer(model)), dense.flat)
    optimizer.load_from(torch_optimizer(model))
    return Assembly(
        lookup=next(iter(_owners_lookups(sharded))),
        dense=dense,
        optimizer=optimizer,
        exchange=chosen,
        blocks=blocks,
        order=ownership.keys,
        slots=make_slots(blocks, ownership, chosen, dense_width=dense.dense_width),
        lanes=Lanes(world.device),
        ownership=ownership,
        tail_rows=_rows_of_last(sharded),
        torch_optimizer=torch_optimizer(model),
        rows=rows if _on_all_ranks(rows is not None, world) else None,
    )


def _num_dense(dlrm: DLRM | None, told: int | None) -> int:
    """Dense features of the model: as told, or what the built-in one reads."""
    if told is not None:
        return told
    return 0 if dlrm is None else int(next(iter(_mlps(dlrm).bottom)).in_features)


def _on_all_ranks(flag: bool, world: World) -> bool:
    """Collective."""
    said = torch.tensor([int(flag)])
    if world.size > 1:
        dist.all_reduce(said, dist.ReduceOp.MIN, group=world.control_group)
    return bool(said)


def _traced(
    model: ShardedModel, keys: tuple[str, ...], blocks: Blocks, *, part: Callable[..., TracedPart]
) -> TracedPart:
    """A model's dense part as it is, without its tables. Raises CannotCapture."""
    try:
        return part(without_tables(model.module.module, _dense_parameters(model), keys, blocks.dim), blocks)
    except ValueError as error:
        raise CannotCapture((str(error),)) from error


def torch_optimizer(model: ShardedModel) -> torch.optim.Optimizer:
    """The torch optimizer inside the model's keyed one."""
    assert model.dense is not None
    optimizer: torch.optim.Optimizer = model.dense._optimizer
    return optimizer


def table_modules(sharded: Any) -> list[Any]:
    """FBGEMM's modules of the tables that this rank owns, or columns of."""
    return [module.emb_module for lookup in _owners_lookups(sharded) for module in lookup._emb_modules]


def _owners_lookups(sharded: Any) -> list[Any]:
    """One at most; the other is of tables of which every rank has a copy."""
    return [lookup for lookup in sharded._lookups if not isinstance(lookup, DistributedDataParallel)]


def _copies_lookups(sharded: Any) -> list[Any]:
    return [lookup.module for lookup in sharded._lookups if isinstance(lookup, DistributedDataParallel)]


def _refusals_of_lists(sharded: Any) -> tuple[str, ...]:
    found, ownership = [], ownership_of(sharded)
    if any(len(lookup._emb_modules) > 1 for lookup in (*_owners_lookups(sharded), *_copies_lookups(sharded))):
        found.append("lists of ids in tables of several kinds (dim, type or pooling): each kind has sizes of its own")
    if any(not features for features in ownership.owned):
        found.append("lists of ids and a rank without tables")
    return tuple(found)


def _rows_of_last(sharded: Any) -> int:
    """Rows of the table that the last feature of this rank looks up."""
    modules = table_modules(sharded)
    return int(modules[-1].embedding_specs[modules[-1].feature_table_map[-1]][0]) if modules else 0


def _skip_bounds_check(sharded: Any) -> None:
    """Preprocessing proves every id to be a row of its table; FBGEMM need not look again (24 us a step, H200)."""
    for table in table_modules(sharded):
        table.bounds_check_mode_int = 3  # BoundsCheckMode.NONE


def _learn_no_weights(sharded: Any) -> None:
    """Weights of ids are inputs: without a word FBGEMM computes their gradient all the same (3.4 ms of plan 4's 25, H200, 2026-11-30)."""
    for table in table_modules(sharded):
        if table.current_device.type == "cuda" and not isinstance(table.forward, partial):
            none = torch.zeros(len(table.feature_table_map), dtype=torch.int32, device=table.current_device)
            table.forward = partial(table.forward, feature_requires_grad=none)


def _trained(model: ShardedModel) -> list[nn.Parameter]:
    """What the dense optimizer updates."""
    return [parameter for group in torch_optimizer(model).param_groups for parameter in group["params"]]


def _dense_parameters(model: ShardedModel) -> list[nn.Parameter]:
    """The same without tables of which every rank has a copy."""
    return [parameter for parameter in _trained(model) if not isinstance(parameter, TableBatchedEmbeddingSlice)]


def _written(dlrm: Any, dim: int) -> Mlps | None:
    """The layers of a model that the part written for the GPU takes; None: of any other."""
    if dlrm is None or dim not in DIMS:
        return None
    try:
        return _mlps(dlrm)
    except ValueError:
        return None


def _mlps(dlrm: Any) -> Mlps:
    def linears(part: nn.Module) -> list[nn.Linear]:
        return [module for module in part.modules() if isinstance(module, nn.Linear)]

    return Mlps(bottom=linears(dlrm.dense_arch), top=linears(dlrm.over_arch))


def _find(root: nn.Module, kind: type) -> Any:
    return next(iter(_all(root, kind)), None)


def _all(root: nn.Module, kind: type) -> list[Any]:
    return [module for module in root.modules() if isinstance(module, kind)]
