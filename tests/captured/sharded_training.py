"""Trains a job whose tables are whole, split by columns and copied to every rank, in TorchRec's eager step and by the captured recipe.

Jobs, models and assembly are those of a run; only preprocessing is replaced, by batches of ids that are made here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob, RAPJobSpec
from rap_trainer.captured.assemble import Assembly, assemble
from rap_trainer.captured.list_exchange import ListExchange, make_lists
from rap_trainer.captured.lists import ListLayout
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.slots import Slot
from rap_trainer.checkpoint.tensors import begin_state, local_parts, training_tensors
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import ShardedModel, shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plans import plan_job
from rap_trainer.world import World
from torchrec import KeyedJaggedTensor

ROWS, DIM, BATCH = 30, 16, 8
EPS = 1e-3
"""Of Adagrad, whose first steps else are the signs of gradients, also of those that are rounding alone."""
SHARDINGS = ("tableWise", "columnWise", "dataParallel", "columnWise", "tableWise", "dataParallel", "tableWise")


def sharded_job(
    shardings: tuple[str, ...] = SHARDINGS, *, max_length: int = 1, weighted: bool = False, **changes: Any
) -> tuple[dict[str, Any], RAPJobSpec, FeatureGraph]:
    """Plan 0 with a table for each of `shardings`. `max_length` above 1: lists of ids."""
    document = plan_job(0, max_rows=ROWS, dim=DIM, batch_size=BATCH)
    dense, sparse = document["spec"]["features"][:2]
    features = [dense]
    for i, sharding in enumerate(shardings):
        ops = sparse["ops"] if max_length == 1 else sparse["ops"][:-1]
        table = {"rows": ROWS + i, "dim": DIM, "sharding": sharding}
        features.append({"columns": [f"cat_{i}"], "ops": ops, "table": table})
        if weighted:
            document["spec"]["columns"][f"weight_{i}"] = "list<float32>"
            features[-1]["weights"] = f"weight_{i}"
    document["spec"]["features"] = features
    rate = {"lr": 0.05, "eps": EPS}
    document["spec"]["optimizer"] = {"dense": {"adagrad": rate}, "embedding": {"rowwiseAdagrad": rate}}
    document["spec"].update(changes)
    spec = RAPJob.model_validate(document).spec
    graph, problems = compile_features(spec)
    assert graph is not None, problems
    return document, spec, graph


def build(spec: RAPJobSpec, graph: FeatureGraph, world: World) -> ShardedModel:
    return shard_model(build_model(spec, embedding_bag_collection(graph), num_dense=graph.dense_width), spec, world)


@dataclass
class Batches:
    """Of all ranks, the same on each; a preprocessor that fills a slot with this rank's share of the next."""

    graph: FeatureGraph
    world: World
    max_length: int
    weighted: bool
    num: int
    layout: ListLayout | None = None
    order: tuple[str, ...] = ()
    next: int = 0
    num_kernels: int = 1
    _ids: dict[tuple[int, int, str], torch.Tensor] = field(default_factory=dict)
    _lengths: dict[tuple[int, int, str], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        W = self.world.size
        self.dense = torch.rand(self.num, W, BATCH, self.graph.dense_width, generator=generator)
        self.labels = (torch.rand(self.num, W, BATCH, generator=generator) < 0.4).float()
        for key in product(range(self.num), range(W), self.names):
            lengths = torch.randint(0, self.max_length + 1, (BATCH,), dtype=torch.int32, generator=generator)
            self._lengths[key] = lengths
            self._ids[key] = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.graph.sparse]

    def _weights(self, ids: torch.Tensor) -> torch.Tensor:
        return 0.5 + ids.float() / ROWS

    def kjt(self, i: int) -> KeyedJaggedTensor:
        rank = self.world.rank
        ids = torch.cat([self._ids[i, rank, name] for name in self.names])
        return KeyedJaggedTensor(
            keys=self.names,
            values=ids,
            lengths=torch.cat([self._lengths[i, rank, name] for name in self.names]),
            weights=self._weights(ids) if self.weighted else None,
        )

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        i, rank = min(self.next, self.num - 1), self.world.rank
        slot.dense[:, : self.graph.dense_width] = self.dense[i, rank]
        slot.targets.labels_B.copy_(self.labels[i, rank])
        slot.targets.scale.fill_(1 / (BATCH * self.world.size))
        slot.targets.num_rows.fill_(BATCH)
        if slot.lists is None:
            self._fill_single(i, slot)
        else:
            self._fill_lists(i, slot)
        self.next += 1

    def _fill_single(self, i: int, slot: Slot) -> None:
        assert slot.present_BS is not None
        for f, name in enumerate(self.order):
            present = self._lengths[i, self.world.rank, name].bool()
            slot.present_BS[:, f] = present
            slot.ids_FB[f] = 7  # any row
            slot.ids_FB[f, present] = self._ids[i, self.world.rank, name]

    def _fill_lists(self, i: int, slot: Slot) -> None:
        assert slot.lists is not None
        assert self.layout is not None
        slot.lists.ids_N.fill_(10**6)  # whatever lies behind a block's ids is no id
        row = 0
        for at, names in zip(self.layout.starts, self.layout.features, strict=True):
            for name in names:
                ids = self._ids[i, self.world.rank, name]
                slot.lists.ids_N[at : at + ids.numel()] = ids
                if slot.lists.weights_N is not None:
                    slot.lists.weights_N[at : at + ids.numel()] = self._weights(ids)
                slot.lists.lengths[row * BATCH : (row + 1) * BATCH] = self._lengths[i, self.world.rank, name]
                at, row = at + ids.numel(), row + 1


def eager_losses(model: ShardedModel, batches: Batches, steps: range) -> list[float]:
    losses = []
    for i in steps:
        model.zero_grad()
        logits = model.forward(batches.dense[i, batches.world.rank], batches.kjt(i))
        labels = batches.labels[i, batches.world.rank]
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / BATCH
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        model.update()
        total = loss.detach() / batches.world.size
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


class Recipe:
    """The captured step on a CPU: what a graph would hold, run as it is."""

    def __init__(self, model: ShardedModel, batches: Batches, *, window: Window, precision: str = "fp32") -> None:
        world, several = batches.world, batches.max_length > 1
        self.assembly: Assembly = assemble(
            model,
            world,
            batch_size=BATCH,
            exchange="nccl",
            precision=precision,
            num_dense=batches.graph.dense_width,
            lists=several,
        )
        self.slots, lists = self.assembly.slots, None
        if several:
            lists = self._lists(batches)
            self.slots = self.assembly.slots_with(lists)
        batches.order = self.assembly.order
        self.step = self.assembly.step(batches, Schedule.uniform(1, window), lists=lists)
        self._batches = batches

    def _lists(self, batches: Batches) -> ListExchange:
        ownership = self.assembly.ownership
        most = BATCH * batches.max_length

        def room(names: tuple[str, ...]) -> int:
            return most * len(names) + (16 if names else 0)

        batches.layout = ListLayout(
            owned=ownership.whole,
            room=tuple(max(16, room(names)) for names in ownership.whole),
            batch_size=BATCH,
            weighted=batches.weighted,
            split=ownership.split,
            split_room=room(ownership.split),
            replicated=ownership.replicated,
            replicated_room=room(ownership.replicated),
        )
        return make_lists(batches.layout, self.assembly.exchange, batches.world)

    def losses(self, steps: range) -> list[float]:
        self._batches.next = steps.start
        self.step.prepare(self.slots[0])
        found = []
        for i in range(len(steps)):
            current, following = self.slots[i % 2], self.slots[1 - i % 2]
            self.step.enqueue(current, following)
            total = current.outcome.losses_P.sum()
            dist.all_reduce(total)
            found.append(float(total))
        self.assembly.optimizer.publish_step(self.assembly.torch_optimizer)
        return found


def equal_states(mine: ShardedModel, theirs: ShardedModel) -> None:
    """What a checkpoint would hold, tensor by tensor."""
    got, expected = training_tensors(mine), training_tensors(theirs)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        for a, b in zip(local_parts(got[name]), local_parts(tensor), strict=True):
            try:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


def give_state(source: ShardedModel, target: ShardedModel) -> None:
    """As a checkpoint would: into the memory the target has."""
    begin_state(target)
    held: Mapping[str, Any] = training_tensors(target)
    for name, tensor in training_tensors(source).items():
        for to, of in zip(local_parts(held[name]), local_parts(tensor), strict=True):
            to.copy_(of)


def both(world: World, *, max_length: int, weighted: bool, window: Window) -> None:
    """Losses and states of six steps; then three from each other's state, both ways."""
    _, spec, graph = sharded_job(max_length=max_length, weighted=weighted)

    def batches() -> Batches:
        return Batches(graph, world, max_length, weighted, num=9)

    reference, mine = build(spec, graph, world), build(spec, graph, world)
    expected = eager_losses(reference, batches(), range(6))
    recipe = Recipe(mine, batches(), window=window)
    got = recipe.losses(range(6))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    equal_states(mine, reference)
    resumed = build(spec, graph, world)
    with torch.no_grad():
        give_state(mine, resumed)
    after = eager_losses(resumed, batches(), range(6, 9))
    other = build(spec, graph, world)
    with torch.no_grad():
        give_state(reference, other)
    got = Recipe(other, batches(), window=window).losses(range(6, 9))
    torch.testing.assert_close(got, after, rtol=1e-5, atol=1e-6)
    equal_states(other, resumed)


def train_on_rank(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    group = dist.group.WORLD
    assert group is not None
    world = World(
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        device=torch.device("cpu"),
        data_group=group,
        control_group=group,
        checkpoint_group=group,
    )
    both(world, max_length=1, weighted=False, window=Window.EMB_BWD)
    both(world, max_length=4, weighted=True, window=Window.OUTPUT_DIST)
    dist.destroy_process_group()
