"""Names the rank, the step and the phase when a captured step hangs; a graph says nothing by itself.

The graph counts the phases it enters, in device memory, by tiny kernels on a lane of their own, so nothing waits for them.
(Copies to pinned memory instead delayed the lookup by 25 us: H200, 2026-11-29.) A thread reads the count now and then, on
a stream of its own, which a hung kernel does not block; the training thread does nothing for it. It only reports: what to do about a lost peer is decided by the control plane's time-outs.
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
READ_S = 5.0
"""How long the thread waits for its copy of the phase."""


class Reading(NamedTuple):
    """What the GPU says of itself."""

    step: int
    """Begun last, counted since the last restart."""
    phase: str
    """Entered last."""


class Progress:
    """The phase a step is in, counted by the GPU: one number, since phases follow each other in order."""

    def __init__(self, device: torch.device, lane: Lane) -> None:
        on_gpu = device.type == "cuda"
        self._entered = torch.zeros(1, dtype=torch.int32, device=device)
        self._held = torch.zeros(1, dtype=torch.int32, pin_memory=on_gpu)
        self._reader = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._lane = lane

    def enter(self) -> None:
        """The next phase begins here, on the training stream: the first one of a step, or that after the latest."""
        self._lane.fork()
        with self._lane.on():
            self._entered.add_(1)

    def finish(self) -> None:
        """At the end of the recipe, which must leave no lane behind; nothing waits for a marker."""
        self._lane.join()

    def restart(self) -> None:
        """Counts from 0, on the current stream: warm-up steps do not count."""
        self._entered.zero_()

    def read(self) -> Reading | None:
        """Now, without waiting for the step; None if the GPU answers no copies."""
        if self._reader is None:
            return _reading(int(self._entered))
        with torch.cuda.stream(self._reader):
            self._held.copy_(self._entered, non_blocking=True)
            copied = self._reader.record_event()
        until_s = time.monotonic() + READ_S
        while not copied.query() and time.monotonic() < until_s:
            time.sleep(READ_S / 100)
        return _reading(int(self._held)) if copied.query() else None


def _reading(entered: int) -> Reading:
    return Reading(-(-entered // len(PHASES)), PHASES[(entered - 1) % len(PHASES)])


class Watchdog:
    """Watches the steps of one rank. `report` is called once for a step that takes longer than `limit_s`."""

    def __init__(
        self,
        rank: int,
        progress: Progress,
        *,
        limit_s: float,
        idle: Callable[[], bool],
        report: Callable[[str], None] = log.error,
    ) -> None:
        """`idle`: whether the training stream has nothing to do; called from a thread."""
        self._rank, self._progress, self._limit_s, self._report, self._idle = rank, progress, limit_s, report, idle
        self._step: int | None = None
        """In which the training stream was at the reading before, and since when; None: it was idle."""
        self._since_s = 0.0
        self._reported = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rap-step-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching; idempotent."""
        self._stop.set()
        self._thread.join()

    def check(self, now_s: float) -> None:
        """Reports if the training stream has been in one step for too long. Reads the device."""
        if self._idle():
            self._step = None
            return
        reading = self._progress.read()
        step = (self._step or 0) if reading is None else reading.step
        if step != self._step:
            self._step, self._since_s, self._reported = step, now_s, False
            return
        if now_s - self._since_s > self._limit_s and not self._reported:
            self._reported = True
            phase = "unknown, for the GPU answers no copies" if reading is None else repr(reading.phase)
            self._report(
                f"rank {self._rank}: step {step} since the capture has not finished for {now_s - self._since_s:.0f} s; "
                f"it is in {phase}: see whether every rank reports the same phase"
            )

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 4):
            self.check(time.monotonic())
