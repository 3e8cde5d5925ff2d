"""Times a captured step on the GPU now and then, with two events that are made once.

A step is one graph: there is nothing inside to tell apart, and an event before and after each would cost more than it tells.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rap_trainer.step.timing import PartTimer

EVERY = 64
"""Steps of which one is timed."""
PART = "forward"
"""The part that the whole step is counted to."""


class StepTimer(PartTimer):
    """Seconds by part since the last reading; the step's are those of the timed ones, times all steps. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._steps = 0
        self._untaken = 0
        self._recording = self._recorded = False
        self._step_s = 0.0
        """Of the step timed last."""

    def begin(self) -> None:
        """Before a step is enqueued, on its stream."""
        self._steps += 1
        self._untaken += 1
        if self._steps % EVERY:
            return
        self._read()
        if not self._recorded:
            self._begin.record()
            self._recording = True

    def end(self) -> None:
        """After it."""
        if self._recording:
            self._end.record()
            self._recording, self._recorded = False, True

    def take(self) -> Mapping[str, float]:
        self._read()
        self._seconds[PART] += self._step_s * self._untaken
        self._untaken = 0
        return super().take()

    def _read(self) -> None:
        if self._recorded and self._end.query():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._step_s = self._begin.elapsed_time(self._end) / 1e3
            self._recorded = False
