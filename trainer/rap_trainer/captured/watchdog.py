"""Names the rank, the step and the phase when a captured step hangs; a graph says nothing by itself.

The graph copies the number of each phase it enters to pinned memory, on a lane of its own, so no phase waits for it. A
thread looks at the oldest step the GPU has not finished. It only reports: what to do about a lost peer is decided
by the control plane's time-outs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from rap_trainer.captured.lanes import Lane

log = logging.getLogger(__name__)

PHASES = ("lookup", "output exchange", "forward", "backward", "gradient exchange", "table update", "end")
"""Of a step, in order; a phase is entered when everything before it on the training stream is done."""


class Progress:
    """The phase a step is in, written by the GPU."""

    def __init__(self, device: torch.device, lane: Lane) -> None:
        self._numbers = torch.arange(len(PHASES), dtype=torch.int32, device=device)
        self._phase = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._lane = lane

    def begin(self) -> None:
        """At the start of a step's recipe."""
        self.enter("lookup")

    def enter(self, phase: str) -> None:
        """On the training stream, where the phase begins."""
        at = PHASES.index(phase)
        self._lane.fork()
        with self._lane.on():
            self._phase.copy_(self._numbers[at : at + 1], non_blocking=True)

    def finish(self) -> None:
        """At the end of the recipe."""
        self.enter("end")
        self._lane.join()

    @property
    def phase(self) -> str:
        """The phase entered last."""
        return PHASES[int(self._phase[0])]


class Watchdog:
    """Watches the steps of one rank. `report` is called once for a step that takes longer than `limit_s`."""

    def __init__(
        self, rank: int, progress: Progress, *, limit_s: float, report: Callable[[str], None] = log.error
    ) -> None:
        self._rank, self._progress, self._limit_s, self._report = rank, progress, limit_s, report
        self._running: deque[tuple[int, float, torch.cuda.Event]] = deque()
        self._reported = -1
        self._step = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rap-step-watchdog", daemon=True)
        self._thread.start()

    def replayed(self, done: torch.cuda.Event) -> None:
        """A step was enqueued; `done` is recorded after it."""
        self._step += 1
        self._running.append((self._step, time.monotonic(), done))

    def close(self) -> None:
        """Stops watching; idempotent."""
        self._stop.set()
        self._thread.join()

    def check(self, now_s: float) -> None:
        """Forgets finished steps and reports the oldest one if it has run too long."""
        while self._running and self._running[0][2].query():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._running.popleft()
        if not self._running:
            return
        step, began_s, _ = self._running[0]
        if now_s - began_s > self._limit_s and step != self._reported:
            self._reported = step
            self._report(
                f"rank {self._rank}: step {step} since the capture has not finished for {now_s - began_s:.0f} s; "
                f"it entered phase {self._progress.phase!r} last: see whether every rank reports the same phase"
            )

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 4):
            self.check(time.monotonic())
