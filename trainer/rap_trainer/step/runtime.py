"""Runs a step's stages. What any runtime offers the loop, and the eager one: any sharding, any shapes.

Without a plan, on a GPU the side stages of the next step are enqueued before the main stages of this one, on a stream of
their own, and the main stream waits for them by an event; on a CPU the stages simply follow each other. A plan says
otherwise: inline, or from a window of the step on, beside it (on a CPU in a thread). No plan changes a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from rap_contract.plan import Plan
from rap_contract.windows import INLINE, ORDER

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.plan.fits import PlanRefused, busiest_window
from rap_trainer.step.stages import Stage, StepState
from rap_trainer.step.timing import PartTimer
from rap_trainer.step.windows import MLP_BWD, StepWindows

Refusal = Callable[[Plan], str | None]
"""Why a plan cannot run here, or None."""


class Runtime(Protocol):
    """Prepares a step while the one before trains, then trains it."""

    @property
    def timer(self) -> PartTimer:
        """Seconds by part."""

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None: the runtime's own default."""

    def prepare(self, raw: RawBatch) -> StepState:
        """Starts the part that does not touch the model. Raises BatchError."""

    def train(self, state: StepState) -> StepState:
        """Trains a prepared step. Collective. What went wrong beside it with the step prepared last is in that one's `error`."""

    def prepare_plan(self, plan: Plan) -> None:
        """Gets ready for a plan without running it. Talks to no other rank. Raises PlanRefused; the old plan then stays."""

    def switch_plan(self) -> None:
        """Runs the plan that was prepared last, from the next step on. Between two steps; no value changes."""

    def synchronise_state(self) -> None:
        """Brings what a checkpoint reads up to date."""

    def reload(self) -> None:
        """Takes over what a checkpoint has loaded into the model and its optimizers."""

    def close(self) -> None:
        """Gives back what it holds."""


class EagerRuntime:
    """Calls every stage from the host, one after the other."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        device: torch.device,
        windows: StepWindows | None = None,
        refusal: Refusal = lambda plan: None,
        remap: Callable[[Plan | None], None] = lambda plan: None,
    ) -> None:
        """`windows`: of the model the stages train; without them every plan must be inline. `remap`: told of each plan in force."""
        self._side_stages = [stage for stage in stages if stage.stream == "side"]
        self._main_stages = [stage for stage in stages if stage.stream == "main"]
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device
        self._windows, self._refusal, self._remap = windows, refusal, remap
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="rap-preprocess")
        self._fork: str | None = None
        """The window from which the next step's side stages run; None: at once."""
        self._plan: Plan | None = None
        self._next_plan: Plan | None = None
        self._behind: StepState | None = None
        """Prepared, not trained yet: what the next one may be preprocessed beside."""
        self._riding: StepState | None = None
        """To be preprocessed beside the step that trains."""
        self._beside: Future[None] | None = None
        self.timer = PartTimer(device)

    @property
    def plan(self) -> Plan | None:
        return self._plan

    def prepare(self, raw: RawBatch) -> StepState:
        """Runs the side stages, or leaves them to a window of the step before; on a GPU it only enqueues them."""
        state = StepState(raw=raw)
        if self._fork is not None and self._fork != INLINE and self._behind is not None:
            self._riding = state
        else:
            self._preprocess(state)
        self._behind = state
        return state

    def train(self, state: StepState) -> StepState:
        """Runs the main stages. Collective."""
        if state.batch is None:
            self._preprocess(state)
        if state.ready is not None:
            main = torch.cuda.current_stream(self._device)
            with self.timer.device("preprocess"):  # what of it is exposed: the main stream waiting
                main.wait_event(state.ready)
            assert state.batch is not None
            _used_on(main, state.batch)
        if self._behind is state:
            self._behind = None
        if self._riding is None or self._windows is None:
            self._run(self._main_stages, state)
            return state
        self._windows.begin(self._reached)
        self._run(self._main_stages, state)
        self._windows.end()
        self._join()
        return state

    def prepare_plan(self, plan: Plan) -> None:
        """Raises PlanRefused."""
        reason = self._refusal(plan)
        if reason is None and self._windows is None and busiest_window(plan) != INLINE:
            reason = "the windows of this step are not known; only inline plans run"
        if reason is not None:
            raise PlanRefused(reason)
        self._next_plan = plan

    def switch_plan(self) -> None:
        """The whole of preprocessing is one piece here; it runs where the plan has most of its work."""
        assert self._next_plan is not None, "prepare_plan() comes first"
        self._plan, self._next_plan = self._next_plan, None
        self._remap(self._plan)
        self.fork_at(busiest_window(self._plan))

    def fork_at(self, window: str) -> None:
        """The next step's side stages run from this window of a step on; inline: when it is prepared."""
        self._fork = window

    def synchronise_state(self) -> None:
        """The model and its optimizers hold everything."""

    def reload(self) -> None:
        """The model and its optimizers hold everything; steps prepared before are forgotten."""
        self._behind = self._riding = None

    def close(self) -> None:
        """Ends the thread."""
        self._worker.shutdown()

    # -- preprocessing: at once, or beside the step from a window on

    def _preprocess(self, state: StepState) -> None:
        if self._side is None or self._fork == INLINE:
            self._run(self._side_stages, state)
            return
        self._enqueue(state)

    def _enqueue(self, state: StepState) -> None:
        assert self._side is not None
        with torch.cuda.stream(self._side):
            for stage in self._side_stages:
                stage.run(state)
            state.ready = self._side.record_event()

    def _reached(self, window: str) -> None:
        """The step has come to a window: the rider starts if it is its own, or a later one."""
        if self._riding is None or ORDER.get(window, -1) < ORDER[self._fork or INLINE]:
            return
        state, self._riding = self._riding, None
        if self._side is None:
            self._beside = self._worker.submit(self._caught, state)
            return
        self._side.wait_event(torch.cuda.current_stream(self._device).record_event())
        self._caught(state)

    def _caught(self, state: StepState) -> None:
        """Preprocesses beside training: the loop tells the other ranks of a failure before this one ends."""
        try:
            if self._side is not None:
                self._enqueue(state)
                return
            for stage in self._side_stages:
                stage.run(state)
        except Exception as error:
            state.error = error

    def _join(self) -> None:
        """The step is over: what runs beside it ends too, so that no failure is heard of too late."""
        state, self._riding = self._riding, None
        if state is not None:  # a model without the window
            self._caught(state)
        if self._beside is not None:
            with self.timer.host("preprocess"):
                self._beside.result()
            self._beside = None

    def _run(self, stages: Sequence[Stage], state: StepState) -> None:
        for stage in stages:
            if stage.name == "backward" and self._windows is not None:
                self._windows.enter(MLP_BWD)
            with self.timer.device(stage.name):
                stage.run(state)


def _used_on(stream: torch.cuda.Stream, batch: ModelBatch) -> None:
    """Tells the allocator that memory of the side stream is read on `stream`."""
    batch.sparse.record_stream(stream)
    if batch.owned is not None:
        batch.owned.record_stream(stream)
    for tensor in (batch.dense_BD, batch.labels_B, batch.event_times_s_B, *batch.counters.values()):
        tensor.record_stream(stream)
