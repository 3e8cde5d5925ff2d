"""Names the rank, the step and the phase when a captured step hangs; a graph says nothing by itself.

The graph writes the number of each phase it enters to device memory, by a tiny kernel on a lane of its own, so no phase
waits for it. (Copies to pinned memory instead delayed the lookup by 25 us: H200, 2026-11-29.) A thread looks at the
oldest step the GPU has not finished and then reads the phase on a stream of its own, which a hung kernel does not block.
It only reports: what to do about a lost peer is decided by the control plane's time-outs.
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

PHASES = ("lookup and output exchange", "forward and backward", "gradient exchange", "table update")
"""Of a step, in order; a phase is entered when everything before it on the training stream is done."""
READ_S = 5.0
"""How long the thread waits for its copy of the phase."""


class Progress:
    """The phase a step is in, written by the GPU."""

    def __init__(self, device: torch.device, lane: Lane) -> None:
        self._phase = torch.zeros(1, dtype=torch.int32, device=device)
        self._lane = lane

    def enter(self, phase: str) -> None:
        """On the training stream, where the phase begins."""
        self._lane.fork()
        with self._lane.on():
            self._phase.fill_(PHASES.index(phase))

    def finish(self) -> None:
        """At the end of the recipe: what follows is the next step's lookup."""
        self.enter(PHASES[0])
        self._lane.join()

    def read(self) -> str:
        """The phase entered last, or that it could not be read. Does not wait for the step."""
        if not self._phase.is_cuda:
            return PHASES[int(self._phase)]
        device = self._phase.device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        held = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        with torch.cuda.stream(stream):
            held.copy_(self._phase, non_blocking=True)
            copied = stream.record_event()
        until_s = time.monotonic() + READ_S
        while not copied.query() and time.monotonic() < until_s:
            time.sleep(READ_S / 100)
        return PHASES[int(held)] if copied.query() else "unknown: the GPU answers no copies"


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
                f"it is in {self._progress.read()!r}: see whether every rank reports the same phase"
            )

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 4):
            self.check(time.monotonic())
