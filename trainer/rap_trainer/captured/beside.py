"""Another schedule's graphs, made while the graphs in force train: the thread that captures, and what it hands over.

All captures of a runtime are made in one thread, because libraries keep handles by thread and a capture must not make one.
Meanwhile the interpreter is handed back often, so that training goes on enqueuing. Not here: what is captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from rap_contract.plan import Plan

from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.schedule import Schedule
from rap_trainer.captured.step import TrainStep

T = TypeVar("T")
SWITCH_INTERVAL_S = 1e-4
"""How long the capturing thread may keep the interpreter from the one that trains; Python's own 5 ms are several steps."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan with its graphs; without them it is captured at the switch."""

    plan: Plan
    schedule: Schedule
    step: TrainStep | None = None
    graphs: CapturedSteps | None = None
    generation: int = 0
    """Of the buffers that the graphs are of."""


class CaptureThread:
    """Runs captures one after the other, each on the stream that is current where it is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="rap-capture", initializer=torch.cuda.set_device, initargs=(device,)
        )

    def run(self, work: Callable[[], T]) -> T:
        """Waits for what the work gives or raises."""
        return self.begin(work).result()

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Begins it behind what was begun before."""
        stream = torch.cuda.current_stream(self._device)

        def run() -> T:
            with torch.cuda.stream(stream):
                return work()

        return self._pool.submit(run)

    def close(self) -> None:
        """Waits for what was begun."""
        self._pool.shutdown()


@contextmanager
def yielding() -> Iterator[None]:
    """Threads hand the interpreter over soon."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
