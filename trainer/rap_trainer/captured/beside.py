"""Another schedule's graphs, made while the graphs in force train: the thread that captures, and what it hands over.

All captures of a runtime are made in one thread, because libraries keep handles by thread and a capture must not make one.
Meanwhile the interpreter is handed back often, so that training goes on enqueuing. Not here: what is captured.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, RLock
from typing import TypeVar

import torch
from rap_contract.plan import Plan

from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.schedule import Schedule
from rap_trainer.captured.sizes import Fitted
from rap_trainer.captured.step import TrainStep

T = TypeVar("T")
log = logging.getLogger(__name__)
SWITCH_INTERVAL_S = 1e-4
"""How long the capturing thread may keep the interpreter from the one that trains; Python's own 5 ms are several steps."""


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """A schedule's step and graphs."""

    step: TrainStep
    steps: CapturedSteps
    size_number: int
    """Of the size whose buffers they were made of."""
    fitted: Fitted | None = None
    """The same for batches of as many ids as the size's were."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan with its graphs; without them it is captured at the switch."""

    plan: Plan
    schedule: Schedule
    graphs: Graphs | None


class Beside:
    """Runs captures one after the other, each on the stream that is current where it is asked for, and keeps one plan ready."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._prepared: Prepared | None = None
        self.lock = RLock()
        """Held by who asks for captures or replaces what they are made of. CUDA forbids to wait for the device during one."""
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="rap-capture", initializer=torch.cuda.set_device, initargs=(device,)
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing is captured or given back meanwhile: only so may anybody wait for the whole device, or capture elsewhere."""
        with self.lock:
            self.run(lambda: None)
            yield

    def run(self, work: Callable[[], T]) -> T:
        """Waits for what the work gives or raises."""
        return self.begin(work).result()

    def prepare(self, plan: Plan, schedule: Schedule, capture: Callable[[], Graphs | None]) -> None:
        """Keeps a plan in place of the one before. What cannot be captured beside training is captured at the switch."""
        self._drop()
        graphs = None
        try:
            with yielding():
                self.run(torch.cuda.empty_cache)  # what the graphs given back before have left
                graphs = self.run(capture)
        except RuntimeError as error:
            log.warning("plan %s is captured at the switch: %s", plan.hash, error)
        self._prepared = Prepared(plan=plan, schedule=schedule, graphs=graphs)

    def take(self) -> Prepared:
        """The plan that was kept; its graphs are the caller's from now on."""
        prepared, self._prepared = self._prepared, None
        assert prepared is not None, "prepare_plan() comes first"
        return prepared

    def close_behind(self, steps: CapturedSteps, fitted: Fitted | None = None) -> None:
        """Gives graphs back, and those for fewer ids, when what of them is enqueued has run; does not wait."""
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        done.record(torch.cuda.current_stream(self._device))
        self.begin(lambda: steps.close_behind(done))
        if fitted is not None:
            self.begin(lambda: fitted.graphs.close_behind(done))

    def close(self) -> None:
        """Waits for what was begun."""
        self._drop()
        self._pool.shutdown()

    def _drop(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.graphs is not None:
            self.close_behind(prepared.graphs.steps, prepared.graphs.fitted)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Work for the capturing thread, behind what it was given before, on the stream that is current here."""
        stream = torch.cuda.current_stream(self._device)

        def run() -> T:
            with torch.cuda.stream(stream):
                return work()

        return self._pool.submit(run)


class Yielding:
    """Threads hand the interpreter over soon while any thread is within."""

    def __init__(self) -> None:
        self._lock, self._within, self._before = Lock(), 0, 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._within == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._within += 1
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if self._within == 0:
                    sys.setswitchinterval(self._before)


yielding = Yielding()
