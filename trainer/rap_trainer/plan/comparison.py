"""Predicted against measured, part by part, after each window of steps; a bounded history of ratios corrects later predictions.

Pure but for what it remembers: seconds and statistics come in, rows of the comparison go out. Parts that a runtime
cannot tell apart (a captured step is one graph) are left out, never guessed. Not here: the clock and the metrics.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from rap_contract.plan import Plan

WINDOW_STEPS = 64
"""Steps of a comparison: at 1 ms a step they average over the clock's noise, at 100 ms they take 6 s."""
HISTORY = 32
"""Windows that are remembered."""
STEP, TRAINING, PREPROCESSING, LIST_LENGTHS, CORRECTED = (
    "step",
    "training",
    "preprocessing",
    "list lengths",
    "corrected",
)
MAIN_PARTS = ("forward", "backward", "update")
"""Of a timer: what trains."""
EXPOSED_PART = "preprocess"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One part of a step."""

    part: str
    predicted: float | None
    """Seconds; None where the plan says nothing of it."""
    measured: float | None
    """Seconds; None where it was not measured apart."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A comparison over some steps of one plan."""

    plan_hash: str
    steps: int
    rows: tuple[Row, ...]


class Comparison:
    """The comparisons of one rank. Not thread-safe."""

    def __init__(self, *, window_steps: int = WINDOW_STEPS) -> None:
        self._window_steps = window_steps
        self._plan: Plan | None = None
        self._seconds: dict[str, float] = {}
        self._steps = 0
        self._lengths: Mapping[str, float] | None = None
        """Mean list lengths by group in the plan's first window: what its prediction stands for."""
        self._ratios: dict[str, deque[float]] = {}

    def add(
        self, plan: Plan | None, seconds_by_part: Mapping[str, float], steps: int, lengths: Mapping[str, float]
    ) -> Window | None:
        """What a report has measured; the comparison if a window of steps is full. A new plan begins anew.

        `lengths`: mean list length of each feature group lately, as far as it is known.
        """
        if plan is None or self._plan is None or plan.hash != self._plan.hash:
            self._plan, self._seconds, self._steps, self._lengths = plan, {}, 0, None
            return None  # the report spans the switch
        for part, seconds in seconds_by_part.items():
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds
        self._steps += steps
        if self._lengths is None and lengths:
            self._lengths = dict(lengths)
        if self._steps < self._window_steps:
            return None
        window = Window(plan_hash=plan.hash, steps=self._steps, rows=self._rows(plan, lengths))
        self._seconds, self._steps = {}, 0
        return window

    def correction(self, part: str) -> float:
        """Measured over predicted, the median of the windows that are remembered; 1 before the first."""
        ratios = self._ratios.get(part)
        return statistics.median(ratios) if ratios else 1.0

    @property
    def remembered(self) -> int:
        """Windows in the history; at most HISTORY."""
        return max((len(ratios) for ratios in self._ratios.values()), default=0)

    def _rows(self, plan: Plan, lengths: Mapping[str, float]) -> tuple[Row, ...]:
        predicted = predicted_parts(plan)
        drift = self._drift(plan, lengths)
        step = predicted[STEP] + drift
        measured = measured_parts(self._seconds, self._steps)
        corrected = step * self.correction(STEP)
        for part, seconds in measured.items():
            expected = predicted[part] + (drift if part != TRAINING else 0.0)
            if expected > 0:
                self._ratios.setdefault(part, deque(maxlen=HISTORY)).append(seconds / expected)
        rows = [Row(part=part, predicted=seconds, measured=measured.get(part)) for part, seconds in predicted.items()]
        rows.append(Row(part=LIST_LENGTHS, predicted=drift, measured=None))
        rows.append(Row(part=CORRECTED, predicted=corrected, measured=measured.get(STEP)))
        return tuple(rows)

    def _drift(self, plan: Plan, lengths: Mapping[str, float]) -> float:
        """Seconds that the preprocessing grows by because lists have grown since the plan's first window."""
        if not self._lengths:
            return 0.0
        known = [(self._lengths[group], now) for group, now in lengths.items() if group in self._lengths]
        before = sum(length for length, _ in known)
        if not before:
            return 0.0
        growth = sum(now for _, now in known) / before - 1
        return growth * sum(kernel.added_seconds for kernel in plan.prediction.kernels)


def predicted_parts(plan: Plan) -> dict[str, float]:
    """The plan's prediction in the parts that can be measured."""
    exposed = sum(part.seconds for part in plan.prediction.parts if part.name.startswith(PREPROCESSING))
    step = plan.prediction.step_seconds
    return {STEP: step, TRAINING: step - exposed, PREPROCESSING: exposed}


def measured_parts(seconds: Mapping[str, float], steps: int) -> dict[str, float]:
    """The same of a timer's seconds; a timer that does not know the backward pass times the whole step as one."""
    main = sum(seconds.get(part, 0.0) for part in MAIN_PARTS) / max(steps, 1)
    if "backward" not in seconds:
        return {STEP: main} if main else {}
    exposed = seconds.get(EXPOSED_PART, 0.0) / max(steps, 1)
    return {STEP: main + exposed, TRAINING: main, PREPROCESSING: exposed}
