"""Captures the step's recipe into CUDA graphs: one per slot, in one memory pool, again after a change of plan.

Warm-up runs the recipe as it is, so that kernels compile and libraries allocate outside the capture; it runs with
zero rows, which leaves tables as they are, and the dense state is put back. Not here: what the step does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rap_trainer.captured.gate import GradientGate
from rap_trainer.captured.slots import Slot
from rap_trainer.captured.step import TrainStep

WARM_UPS = 2
"""Steps per slot before a capture: the first compiles, the second proves that nothing more allocates."""


class CapturedSteps:
    """Two graphs: the first trains on slot 0 and fills slot 1, the second the reverse."""

    def __init__(
        self,
        step: TrainStep,
        slots: tuple[Slot, Slot],
        *,
        warm: bool = False,
        sort_early: bool = True,
        beside: bool = False,
    ) -> None:
        """`warm`: the same step ran before with another schedule or other raw buffers, only preprocessing is new.

        `beside`: the graphs of another schedule train meanwhile, so nothing is run, waited for or collected. Needs the thread in
        which the step ran before: libraries keep handles by thread, and a capture must not make one.
        """
        device = slots[0].dense.device
        self._device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []
        lane = step.lanes.capture
        if beside:
            with lane.on():
                self._capture_beside(step, slots, sort_early=sort_early)
            return
        lane.fork()
        with lane.on():
            stream = torch.cuda.current_stream(device)
            _warm_up(step, slots, warm=warm)
        lane.join()
        torch.cuda.synchronize(device)
        gc.collect()
        pool = torch.cuda.graph_pool_handle()
        for current, following in (slots, slots[::-1]):
            graph = torch.cuda.CUDAGraph()
            # NCCL's watchdog thread queries events while we capture: only this thread's calls must be capturable.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                step.enqueue(current, following, gate=GradientGate() if sort_early else None)
            self._graphs.append(graph)
        torch.cuda.synchronize(device)

    def replay(self, slot: int) -> None:
        """Trains on a slot and fills the other, on the current stream."""
        self._graphs[slot].replay()

    def _capture_beside(self, step: TrainStep, slots: tuple[Slot, Slot], *, sort_early: bool) -> None:
        pool = torch.cuda.graph_pool_handle()
        for current, following in (slots, slots[::-1]):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                step.enqueue(current, following, gate=GradientGate() if sort_early else None)
            finally:
                graph.capture_end()
            self._graphs.append(graph)

    def close(self) -> None:
        """Gives the graphs and their memory back. No replay may follow."""
        torch.cuda.synchronize(self._device)
        self._drop()
        gc.collect()
        torch.cuda.empty_cache()

    def close_behind(self, done: torch.cuda.Event) -> None:
        """Gives the graphs back when what was enqueued before `done` has run, while other graphs train in another thread.

        Nothing waits for the device, looks for garbage or frees memory, each of which holds training up for several steps: the memory is
        there for the next capture, or goes back before it.
        """
        done.synchronize()
        self._drop()

    def _drop(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()


def _warm_up(step: TrainStep, slots: tuple[Slot, Slot], *, warm: bool) -> None:
    """Runs everything once outside a capture. With `warm` no rank needs another: only preprocessing runs.

    Preprocessing fills each slot from its raw buffer again, which holds the very batch the slot was filled from
    wherever the slot is still to be trained.
    """
    if warm:
        for slot in slots:
            step.preprocess(slot)
        return
    with _nothing_learned(step, slots):
        for _ in range(WARM_UPS):
            for current, following in (slots, slots[::-1]):
                step.enqueue(current, following)


@contextmanager
def _nothing_learned(step: TrainStep, slots: tuple[Slot, Slot]) -> Iterator[None]:
    """Zero rows in every slot, and the dense values and state as they were."""
    optimizer = step.optimizer
    changed = (step.dense.flat.values, optimizer.step, *optimizer.states, *step.dense.buffers)
    kept = [tensor.clone() for tensor in changed]
    rows = [slot.targets.num_rows.clone() for slot in slots]
    with step.muted():
        for slot in slots:
            slot.targets.num_rows.zero_()
        yield
    for tensor, before in zip(changed, kept, strict=True):
        tensor.copy_(before)
    for slot, before in zip(slots, rows, strict=True):
        slot.targets.num_rows.copy_(before)
