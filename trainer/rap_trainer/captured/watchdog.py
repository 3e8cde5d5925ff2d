"""Names the rank, the step and the phase when a captured step hangs; a graph says nothing by itself.

The graph writes the number of each phase it enters, and counts the steps it has finished, in device memory, by tiny kernels on
a lane of their own, so no phase waits for them. (Copies to pinned memory instead delayed the lookup by 25 us: H200, 2026-11-29.)
A thread reads both now and then, on a stream of its own, which a hung kernel does not block; the training thread only
counts. It only reports: what to do about a lost peer is decided by the control plane's time-outs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from rap_trainer.captured.lanes import Lane

log = logging.getLogger(__name__)

PHASES = ("lookup and output exchange", "forward and backward", "gradient exchange", "table update")
"""Of a step, in order; a phase is entered when everything before it on the training stream is done."""
NEVER_READ = -1
READ_S = 5.0
"""How long the thread waits for its copy of the phase."""


class Reading(NamedTuple):
    """What the GPU says of itself."""

    steps: int
    """Finished since the last restart."""
    phase: str
    """Entered last."""


class Progress:
    """The phase a step is in and the steps finished, written by the GPU."""

    def __init__(self, device: torch.device, lane: Lane) -> None:
        on_gpu = device.type == "cuda"
        self._phase_steps = torch.zeros(2, dtype=torch.int32, device=device)
        self._held = torch.zeros(2, dtype=torch.int32, pin_memory=on_gpu)
        self._reader = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._lane = lane

    def enter(self, phase: str) -> None:
        """On the training stream, where the phase begins."""
        self._lane.fork()
        with self._lane.on():
            self._phase_steps[:1].fill_(PHASES.index(phase))

    def finish(self) -> None:
        """At the end of the recipe: what follows is the next step's lookup."""
        self._lane.fork()
        with self._lane.on():
            self._phase_steps[:1].fill_(PHASES.index(PHASES[0]))
            self._phase_steps[1:].add_(1)
        self._lane.join()

    def restart(self) -> None:
        """Counts from 0, on the current stream: warm-up steps do not count."""
        self._phase_steps.zero_()

    def read(self) -> Reading | None:
        """Now, without waiting for the step; None if the GPU answers no copies."""
        if self._reader is None:
            phase, steps = self._phase_steps.tolist()
            return Reading(steps, PHASES[phase])
        with torch.cuda.stream(self._reader):
            self._held.copy_(self._phase_steps, non_blocking=True)
            copied = self._reader.record_event()
        until_s = time.monotonic() + READ_S
        while not copied.query() and time.monotonic() < until_s:
            time.sleep(READ_S / 100)
        if not copied.query():
            return None
        phase, steps = self._held.tolist()
        return Reading(steps, PHASES[phase])


class Watchdog:
    """Watches the steps of one rank. `report` is called once for a step that takes longer than `limit_s`."""

    def __init__(
        self, rank: int, progress: Progress, *, limit_s: float, report: Callable[[str], None] = log.error
    ) -> None:
        self._rank, self._progress, self._limit_s, self._report = rank, progress, limit_s, report
        self._launched = 0
        self._finished, self._since_s = NEVER_READ, 0.0
        """Steps at the reading before, and since when there were so many."""
        self._reported: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rap-step-watchdog", daemon=True)
        self._thread.start()

    def launched(self) -> None:
        """A step was enqueued."""
        self._launched += 1

    def restart(self) -> None:
        """The device is idle and its count of steps 0 again."""
        self._launched, self._finished, self._reported = 0, NEVER_READ, None

    def close(self) -> None:
        """Stops watching; idempotent."""
        self._stop.set()
        self._thread.join()

    def check(self, now_s: float) -> None:
        """Reports if no step has ended for too long although one was enqueued. Reads the device."""
        launched = self._launched
        if launched == 0:
            return
        reading = self._progress.read()
        steps = self._finished if reading is None else reading.steps
        if self._finished == NEVER_READ and reading is None:
            steps = 0
        if steps >= launched or steps != self._finished:
            self._finished, self._since_s = steps, now_s
            return
        if now_s - self._since_s > self._limit_s and steps != self._reported:
            self._reported = steps
            phase = "unknown, for the GPU answers no copies" if reading is None else repr(reading.phase)
            self._report(
                f"rank {self._rank}: step {steps + 1} since the capture has not finished for {now_s - self._since_s:.0f} s; "
                f"it is in {phase}: see whether every rank reports the same phase"
            )

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 4):
            self.check(time.monotonic())
