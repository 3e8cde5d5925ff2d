"""The training step written for the GPU, as a recipe over lanes: what a CUDA graph captures.

Trains on one slot while the next batch's preprocessing fills the other. The critical path is lookup, exchange,
interaction, top MLP, their backward, exchange, the tables' backward and update; the bottom MLP, all weight
gradients, the all-reduce, the dense update and the preprocessing run on lanes beside it. Not here: capture, host
transfers, and TorchRec's part (the lookup and its fused update are its own modules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from rap_trainer.captured.blocks import pad_to
from rap_trainer.captured.columns import SplitColumns
from rap_trainer.captured.dense_optimizer import FlatOptimizer
from rap_trainer.captured.dense_part import DensePart, Embeddings
from rap_trainer.captured.exchange import Exchange
from rap_trainer.captured.gate import GradientGate
from rap_trainer.captured.jagged_inputs import JaggedInputs
from rap_trainer.captured.lanes import Lanes
from rap_trainer.captured.list_exchange import ListExchange
from rap_trainer.captured.pointwise import sum_losses
from rap_trainer.captured.row_lookup import RowLookup
from rap_trainer.captured.schedule import Placement, Schedule, Window
from rap_trainer.captured.slots import Slot
from rap_trainer.captured.traced_part import TracedPart
from rap_trainer.captured.watchdog import Progress

LEAST_BYTES = 20_000_000
"""Of a part of the exchange to one rank. In parts of 15 MB a step took 0.700 ms instead of 0.691; of 29 MB 1.156, in one exchange 1.189 in an
earlier run (plan 0 at batch 4096 and 8192, 2 H200s, 2026-11-30)."""
PART_ROWS = 32
"""A part has a multiple of so many rows."""

Lookup = Callable[[object], torch.Tensor]
"""TorchRec's grouped lookup of this rank: KJT -> [W * B, width], with the fused update in its backward."""


class Preprocessor(Protocol):
    """The fused kernels of a plan, from raw buffers to a slot. Launches on the current stream."""

    @property
    def num_kernels(self) -> int:
        """Fused launches of a batch, in order."""

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        """One fused kernel; `programs`: grid size, None for its own."""


class NoPreprocessing:
    """Inputs are in the slots already: the ideal a schedule is measured against."""

    @property
    def num_kernels(self) -> int:
        """None."""
        return 0

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        raise AssertionError("there is no kernel to launch")


class TrainStep:
    """The recipe for one model, exchange and schedule. `enqueue` may be captured or run as it is."""

    def __init__(
        self,
        lookup: Lookup,
        dense: DensePart | TracedPart,
        optimizer: FlatOptimizer,
        exchange: Exchange,
        *,
        lanes: Lanes,
        preprocessor: Preprocessor,
        schedule: Schedule,
        score: Callable[[Slot], None] | None = None,
        progress: Progress | None = None,
        lists: ListExchange | None = None,
        rows: RowLookup | None = None,
    ) -> None:
        """`score`: what judges the logits of a slot, enqueued beside the backward. `progress`: told of each phase.

        `lists`: moves ids where rows hold several; without it the exchange moves one id a row and feature, and `rows`, where there
        is one, looks them up in place of `lookup` and the exchange of its output.
        """
        if len(schedule.placements) != preprocessor.num_kernels:
            raise ValueError(f"{preprocessor.num_kernels} kernels, the schedule places {len(schedule.placements)}")
        self.lookup, self.dense, self.optimizer, self.exchange = lookup, dense, optimizer, exchange
        self.preprocessor, self.schedule, self.score = preprocessor, schedule, score
        self.lanes, self.lists = lanes, lists
        self.rows = rows if lists is None else None
        self.progress = progress
        self._split = SplitColumns(dense.blocks, dense.flat.values.device) if dense.blocks.num_split else None
        self._muted = False

    def prepare(self, slot: Slot) -> None:
        """Fills a slot outside a step: the first batch, and the next one after a change of plan."""
        self.preprocess(slot)
        self._send(slot)
        self.exchange.barrier()
        self._receive(slot)

    def preprocess(self, slot: Slot) -> None:
        """The schedule's kernels one after the other, without telling any other rank."""
        for placement in self.schedule.placements:
            self.preprocessor.launch(placement.kernel, slot, placement.programs)

    def enqueue(self, current: Slot, following: Slot, *, gate: GradientGate | None = None) -> None:
        """Trains on `current` and prepares `following`. `gate`: in a capture, the tables' backward begins early."""
        exchange, dense = self.exchange, self.dense
        self.lanes.reset()
        self._enter()
        for placement in self.schedule.at(Window.INLINE):
            self._launch(placement, following)
        self._open(Window.EMB_FWD, following)
        self._forward_bottom_beside(current)
        self.lanes.tables.fork()
        with self.lanes.tables.on():
            if gate is not None:
                gate.before_lookup()
            pooled = self._look_up(current)
        if self.rows is None:
            self.lanes.tables.join()
        self._open(Window.OUTPUT_DIST, following)
        own = self._own(pooled.detach()) if self.rows is None else self.rows.own
        embeddings = Embeddings(own=own, peer=exchange.peer, present_BS=current.present_BS)
        self._exchange_and_forward(current, pooled.detach(), embeddings, following)
        dense.forward_loss(current.targets, current.outcome)
        self._open(Window.MLP_BWD, following)
        dense.backward_top()
        self.lanes.tail.fork()
        with self.lanes.tail.on():
            sum_losses(current.outcome, current.targets)
            if self.score is not None:
                self.score(current)
            dense.early_weight_gradients()
            if not exchange.uses_nccl:
                self.lanes.learn.fork()
                with self.lanes.learn.on():
                    self._learn(dense.flat.early)
            dense.last_weight_gradient()
        grads = exchange.pooled_grads
        dense.backward_interaction(embeddings, own=self._own(grads), peer=exchange.peer_grads)
        self.lanes.bottom.fork()
        with self.lanes.bottom.on():
            dense.backward_bottom()
            if dense.tables is not None:
                dense.tables.backward(exchange.peer_grads)
        if self._split is not None:
            self._split.spread(self._own(grads), exchange.peer_grads)
        self._open(Window.GRAD_DIST, following)
        self._enter()
        self._ids_before(Window.GRAD_DIST, following)
        exchange.send_grads()
        self._receive_beside(Window.GRAD_DIST, following)
        if gate is not None:
            gate.gradients_ready()
        self._finish_dense()
        self._open(Window.EMB_BWD, following)
        self._enter()
        self._backward_tables(current, pooled, grads, gate)
        self.lanes.tail.join()
        self._ids_after(Window.GRAD_DIST, following)
        if self.progress is not None:
            self.progress.finish()

    def _forward_bottom_beside(self, current: Slot) -> None:
        """What needs nothing of the tables that are sharded."""
        self.lanes.bottom.fork()
        with self.lanes.bottom.on():
            self.dense.forward_bottom(current.dense)
            self.optimizer.begin()
            if self.dense.tables is not None and current.replicated is not None:
                self.dense.tables.forward(current.replicated.kjt, self.exchange.peer)

    def _look_up(self, current: Slot) -> torch.Tensor:
        if isinstance(current.inputs, JaggedInputs):
            with current.inputs.looked_up():
                return self.lookup(current.inputs.kjt)
        if self.rows is None:
            return self.lookup(current.inputs.kjt)
        return self.rows.for_autograd(self.lookup, current.inputs.kjt)

    def _exchange_and_forward(
        self, current: Slot, pooled: torch.Tensor, embeddings: Embeddings, following: Slot
    ) -> None:
        """The dense part works on the rows that have arrived while the next ones travel."""
        arrived = []
        self.lanes.exchange.fork()
        with self.lanes.exchange.on():
            for rows in self._parts:
                if self.rows is None:
                    self.exchange.send_pooled(pooled, rows)
                else:
                    self.rows.put(current.inputs.kjt.values(), rows)
                    self.exchange.pooled_placed()
                arrived.append(self.lanes.exchange.mark())
        for i, (rows, mark) in enumerate(zip(self._parts, arrived, strict=True)):
            self.lanes.exchange.reached(mark)
            if i == 0:
                self._open(Window.MLP_FWD, following)
                self._enter()
                self.lanes.bottom.join()
            if self._split is not None:
                self._split.collect(embeddings.own, embeddings.peer, rows)
            self.dense.forward_rows(embeddings, rows)

    @property
    def _parts(self) -> tuple[slice, ...]:
        """Rows that travel and are worked on together."""
        rows, parts = self.dense.blocks.batch_size, self.exchange.parts
        num_bytes = self.dense.blocks.block_elements * torch.float32.itemsize
        if parts == 1 or not self.dense.splits or num_bytes < parts * LEAST_BYTES:
            return (slice(0, rows),)
        size = pad_to(-(-rows // parts), PART_ROWS)
        return tuple(slice(begin, min(begin + size, rows)) for begin in range(0, rows, size))

    def _backward_tables(
        self, current: Slot, pooled: torch.Tensor, grads: torch.Tensor, gate: GradientGate | None
    ) -> None:
        """TorchRec's fused update, on the lane of the lookup, where autograd runs it anyway."""
        if gate is None:
            self.lanes.tables.fork()
        with self.lanes.tables.on():
            if gate is not None:
                gate.ids_known()
            if isinstance(current.inputs, JaggedInputs):
                current.inputs.fill_rest()
            pooled.backward(grads[: pooled.numel()].view_as(pooled))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            if gate is not None:
                gate.backward_enqueued()
        self.lanes.tables.join()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Steps run within count no row: nothing is learned from them."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def _launch(self, placement: Placement, following: Slot) -> None:
        self.preprocessor.launch(placement.kernel, following, placement.programs)
        if self._muted:
            following.targets.num_rows.zero_()

    def _enter(self) -> None:
        """The next of `watchdog.PHASES` begins."""
        if self.progress is not None:
            self.progress.enter()

    def _own(self, pooled: torch.Tensor) -> torch.Tensor:
        """The block [B, width] of this rank's own rows."""
        blocks = self.dense.blocks
        size = blocks.batch_size * blocks.own_width
        start = blocks.rank * size
        return pooled.view(-1)[start : start + size]

    def _open(self, window: Window, following: Slot) -> None:
        """Forks the window's kernels from here; ids leave as soon as they are ready and may be written."""
        placements = self.schedule.at(window)
        if placements:
            self.lanes.prepare.fork()
            with self.lanes.prepare.on():
                for placement in placements:
                    self._launch(placement, following)
        if self.exchange.ids_in_graph and window is self._ids_window:
            self.lanes.ids.fork()
            with self.lanes.ids.on():
                self.lanes.prepare.join()
                self._send(following)

    def _send(self, slot: Slot) -> None:
        if self.lists is None:
            self.exchange.send_ids(slot.to_send(), slot.index)
        else:
            self.lists.send(slot.index)

    def _receive(self, slot: Slot) -> None:
        """Lists that have arrived become the lookup's input; single ids arrive as it."""
        for inputs in (slot.inputs, slot.replicated):
            if isinstance(inputs, JaggedInputs):
                inputs.fill()
        if isinstance(slot.replicated, JaggedInputs):
            slot.replicated.share_rest()  # PyTorch's lookup wants a bag for every id

    def _receive_beside(self, window: Window, following: Slot) -> None:
        """The same beside the tables' update, if the lists arrived with the window's exchange."""
        if self.lists is not None and self._ids_window.rank < window.rank:
            self.lanes.ids.fork()
            with self.lanes.ids.on():
                self._receive(following)

    @property
    def _ids_window(self) -> Window:
        """Peers read the slot until their tables' update; the exchange of lookup outputs proves that they are done."""
        return max(Window.MLP_FWD, self.schedule.last_window, key=lambda window: window.rank)

    def _ids_before(self, window: Window, following: Slot) -> None:
        """Ids sent before the gradients' exchange are visible with it."""
        if self._ids_window.rank >= window.rank:
            return
        if self.exchange.ids_in_graph:
            self.lanes.ids.join()
        else:
            self.lanes.prepare.join()
            self._send(following)

    def _ids_after(self, window: Window, following: Slot) -> None:
        self.lanes.prepare.join()
        if self._ids_window.rank < window.rank:
            self.lanes.ids.join()
            return
        if self.exchange.ids_in_graph:
            self.lanes.ids.join()
        else:
            self._send(following)
        self.exchange.barrier()
        self._receive(following)

    def _finish_dense(self) -> None:
        """The rest of all-reduce and update on the tail; NCCL's collectives keep one order, after the gradients' exchange."""
        if self.exchange.uses_nccl:
            self.lanes.tail.fork()
        with self.lanes.tail.on():
            self.lanes.bottom.join()
            self.dense.finish_gradients()
            self.lanes.learn.join()  # reductions of all ranks keep one order
            flat = self.dense.flat
            self._learn(slice(flat.values.numel()) if self.exchange.uses_nccl else flat.late)

    def _learn(self, part: slice) -> None:
        if part.stop > (part.start or 0):
            self.exchange.reduce_grads(part)
            self.optimizer.update(part)
