"""Runs a step's stages. What any runtime offers the loop, and the eager one: any sharding, any shapes.

On a GPU the side stages of the next step are enqueued before the main stages of this one, on a stream of their own,
and the main stream waits for them by an event. On a CPU the stages simply follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.step.stages import Stage, StepState
from rap_trainer.step.timing import PartTimer


class Runtime(Protocol):
    """Prepares a step while the one before trains, then trains it."""

    timer: PartTimer

    def prepare(self, raw: RawBatch) -> StepState:
        """Starts the part that does not touch the model. Raises BatchError."""

    def train(self, state: StepState) -> StepState:
        """Trains a prepared step. Collective."""

    def synchronise_state(self) -> None:
        """Brings what a checkpoint reads up to date."""

    def reload(self) -> None:
        """Takes over what a checkpoint has loaded into the model and its optimizers."""

    def close(self) -> None:
        """Gives back what it holds."""


class EagerRuntime:
    """Calls every stage from the host, one after the other."""

    def __init__(self, stages: Sequence[Stage], *, device: torch.device) -> None:
        self._side_stages = [stage for stage in stages if stage.stream == "side"]
        self._main_stages = [stage for stage in stages if stage.stream == "main"]
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device
        self.timer = PartTimer(device)

    def prepare(self, raw: RawBatch) -> StepState:
        """Runs the side stages; on a GPU it only enqueues them."""
        state = StepState(raw=raw)
        if self._side is None:
            self._run(self._side_stages, state)
            return state
        with torch.cuda.stream(self._side):
            for stage in self._side_stages:
                stage.run(state)
            state.ready = self._side.record_event()
        return state

    def train(self, state: StepState) -> StepState:
        """Runs the main stages. Collective."""
        if state.ready is not None:
            main = torch.cuda.current_stream(self._device)
            with self.timer.device("preprocess"):  # what of it is exposed: the main stream waiting
                main.wait_event(state.ready)
            assert state.batch is not None
            _used_on(main, state.batch)
        self._run(self._main_stages, state)
        return state

    def synchronise_state(self) -> None:
        """The model and its optimizers hold everything."""

    def reload(self) -> None:
        """The model and its optimizers hold everything."""

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, stages: Sequence[Stage], state: StepState) -> None:
        for stage in stages:
            with self.timer.device(stage.name):
                stage.run(state)


def _used_on(stream: torch.cuda.Stream, batch: ModelBatch) -> None:
    """Tells the allocator that memory of the side stream is read on `stream`."""
    batch.sparse.record_stream(stream)
    for tensor in (batch.dense_BD, batch.labels_B, batch.event_times_s_B, *batch.counters.values()):
        tensor.record_stream(stream)
