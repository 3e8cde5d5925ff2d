"""The captured runtime as a subject of measurement: any exchange, any schedule, with or without preprocessing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from rap_trainer.batch import ModelBatch
from rap_trainer.bench.blocks import with_blocks
from rap_trainer.bench.subject import Subject
from rap_trainer.captured.assemble import Assembly, assemble
from rap_trainer.captured.blocks import pad_to
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.jagged_inputs import JaggedInputs
from rap_trainer.captured.list_exchange import make_lists
from rap_trainer.captured.lists import PLACE_IDS, Form, ListLayout, form_of
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.slots import Slot
from rap_trainer.captured.state import DEFAULT_TUNING, CapturedState, Tuning
from rap_trainer.captured.step import NoPreprocessing
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World


def fill_rest(slot: Slot, batch: ModelBatch) -> None:
    """What of a preprocessed batch is not sparse into a slot."""
    rows = batch.dense_BD.shape[0]
    slot.dense[:rows, : batch.dense_BD.shape[1]].copy_(batch.dense_BD)
    slot.targets.labels_B[:rows].copy_(batch.labels_B)
    slot.targets.num_rows.fill_(rows)
    slot.targets.scale.fill_(1 / batch.global_rows)


def fill_ids(assembly: Assembly, slot: Slot, batch: ModelBatch, sparse_names: list[str]) -> None:
    """At most one id a row and feature into a slot, and to the owners, outside any graph."""
    rows = batch.dense_BD.shape[0]
    present = batch.sparse.lengths().bool()
    spread = torch.zeros(present.numel(), dtype=torch.int64, device=present.device)
    spread[present] = batch.sparse.values()
    index = [sparse_names.index(name) for name in assembly.order]
    slot.ids_FB[:, :rows].copy_(spread.view(-1, rows)[index])
    if slot.present_BS is not None:
        slot.present_BS[:rows].copy_(present.view(-1, rows)[index].t())
    assembly.exchange.send_ids(slot.to_send(), slot.index)


def lists_of_batches(assembly: Assembly, subject: Subject, world: World, *, room: float = 1.0) -> ListLayout:
    """Blocks of `room` times what the largest of the subject's batches fills, on every rank. Collective."""
    owned = assembly.ownership.whole
    sizes = [[sum(batch.sparse[n].values().numel() for n in names) for names in owned] for batch in subject.ready]
    largest = torch.tensor(sizes, device=world.device).amax(0)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    whole = tuple(max(PLACE_IDS, pad_to(math.ceil(room * size), PLACE_IDS)) for size in largest.tolist())
    return ListLayout(owned=owned, room=whole, batch_size=subject.batch_size, weighted=subject.graph.weighted)


def fill_lists(slot: Slot, batch: ModelBatch, layout: ListLayout) -> None:
    """Lists of ids into a slot."""
    assert slot.lists is not None
    row, B = 0, layout.batch_size
    for start, names in zip(layout.starts, layout.features, strict=True):
        for name in names:
            feature = batch.sparse[name]
            end = start + feature.values().numel()
            slot.lists.ids_N[start:end] = feature.values()
            if slot.lists.weights_N is not None:
                slot.lists.weights_N[start:end] = feature.weights()
            slot.lists.lengths[row * B : (row + 1) * B] = feature.lengths()
            start, row = end, row + 1


class CapturedIdeal:
    """The captured step with inputs already preprocessed on the device, input dist included."""

    def __init__(
        self,
        model: ShardedModel,
        world: World,
        *,
        batch_size: int,
        exchange: str = "auto",
        precision: str = "tf32",
        sort_early: bool = True,
        in_parts: bool = True,
        direct: bool = DEFAULT_TUNING.direct,
        subject: Subject | None = None,
        room: float = 1.0,
    ) -> None:
        """`subject`: needed where rows hold several ids, for how many its batches have; `room`: of `lists_of_batches`."""
        several = subject is not None and form_of(subject.graph) is Form.LISTS
        self.assembly = assemble(
            model,
            world,
            batch_size=batch_size,
            exchange=exchange,
            precision=precision,
            num_dense=None if subject is None else subject.graph.dense_width,
            ids_proven=True,
            lists=several,
            direct=direct,
        )
        parts = self.assembly
        if not in_parts:
            parts.exchange.parts = 1
        self.slots, self._lists = parts.slots, None
        if several:
            assert subject is not None
            self._layout = lists_of_batches(parts, subject, world, room=room)
            self._lists = make_lists(self._layout, parts.exchange, world)
            self.slots = parts.slots_with(self._lists)
        self.step = parts.step(NoPreprocessing(), Schedule(), lists=self._lists)
        self.graphs = CapturedSteps(self.step, self.slots, sort_early=sort_early)
        self._next = 0

    def train(self, batch: ModelBatch, names: list[str]) -> float:
        """Trains on one batch and gives the global loss; for equality, not for timing."""
        slot = self.slots[self._next]
        torch.cuda.synchronize()
        dist.barrier()
        if self._lists is None:
            fill_ids(self.assembly, slot, batch, names)
        else:
            fill_lists(slot, batch, self._layout)
            self._lists.send(slot.index)
        fill_rest(slot, batch)
        self.assembly.exchange.barrier()
        if isinstance(slot.inputs, JaggedInputs):
            slot.inputs.fill()
        self.graphs.replay(self._next)
        self._next = 1 - self._next
        loss = slot.outcome.losses_P.sum()
        dist.all_reduce(loss)
        return float(loss)

    def one(self) -> Callable[[], None]:
        """Replays on whatever the slots hold."""

        def step() -> None:
            self.graphs.replay(self._next)
            self._next = 1 - self._next

        return step


class Rap:
    """The captured runtime as a job runs it: raw columns in host memory in, trained steps out."""

    def __init__(
        self,
        model: ShardedModel,
        subject: Subject,
        world: World,
        *,
        precision: str = "tf32",
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        self.runtime = CapturedRuntime(
            model,
            subject.graph,
            world,
            batch_size=subject.batch_size,
            precision=precision,
            tuning=tuning,
        )
        self.host = tuple(with_blocks(raw, subject.graph, pinned=True) for raw in subject.host)
        self._taken = 0
        self.host_s: list[tuple[float, float]] = []
        """Seconds the host worked in `prepare` and in `train`, by step; waiting for a free pinned buffer is not work."""
        self._pending = self._take()

    def _take(self) -> CapturedState:
        self._taken += 1
        return self.runtime.prepare(self.host[(self._taken - 1) % len(self.host)])

    def step(self) -> torch.Tensor:
        """Prepares the next batch and trains the one before; gives this rank's share of its loss, until the step after next."""
        began, waited_s = time.perf_counter(), self.runtime.waited_s
        upcoming = self._take()
        prepared, waited_preparing_s = time.perf_counter(), self.runtime.waited_s
        state = self.runtime.train(self._pending)
        trained, waited_training_s = time.perf_counter(), self.runtime.waited_s
        self.host_s.append(
            (
                prepared - began - (waited_preparing_s - waited_s),
                trained - prepared - (waited_training_s - waited_preparing_s),
            )
        )
        self._pending = upcoming
        assert state.loss is not None
        return state.loss

    def switch(self, window: Window, programs: int | None) -> None:
        """All kernels in one window, each with at most so many programs."""
        self.runtime.switch(Schedule.uniform(self.runtime.num_kernels, window, programs))
