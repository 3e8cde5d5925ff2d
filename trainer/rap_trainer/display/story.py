"""The story of a job over all its attempts, bounded: numbers thinned out evenly, events counted by kind.

A value; every change gives a new one. Not here: files (history.py) and drawing (report.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rap_trainer.display.json_form import Shown
from rap_trainer.display.progress import Event, Outcome, Progress, Run

MAX_POINTS = 2000  # about what a report can draw; a line of the file is some 700 bytes
MAX_EVENTS_OF_A_KIND = 100
MAX_RUNS = 100


@dataclass(frozen=True, kw_only=True)
class Story:
    """Points in order of step, one report of the training loop in `stride` of them kept.

    Thinning is deterministic: report number i of the job is kept while i is a multiple of the stride, and the stride
    doubles when there are more than MAX_POINTS.
    """

    stride: int = 1
    num_reports: int = 0
    """Reports seen so far, kept or not."""
    runs: tuple[Run, ...] = ()
    points: tuple[Progress, ...] = ()
    events: tuple[Event, ...] = ()
    outcome: Outcome | None = None
    """How the newest attempt ended; None while it runs or if it was killed."""

    @property
    def num_values(self) -> int:
        return len(self.runs) + len(self.points) + len(self.events) + (self.outcome is not None)

    def with_(self, value: Shown) -> Story:
        """The story going on with a new run, point, event or outcome."""
        if isinstance(value, Run):
            return self._with_run(value)
        if isinstance(value, Progress):
            return self._with_point(value)
        if isinstance(value, Event):
            return self._with_event(value)
        return replace(self, outcome=value)

    def _with_run(self, run: Run) -> Story:
        """A new attempt: the end of the one before becomes an event, and points after the checkpoint it begins from are of steps that will be made again."""
        events = self.events if self.outcome is None else (*self.events, _end(self.outcome))
        points = tuple(point for point in self.points if point.step <= run.resumed_step)
        num_reports = (len(points) - 1) * self.stride + 1 if points else 0
        runs = (*self.runs, run)[-MAX_RUNS:]
        return replace(self, runs=runs, points=points, events=events, num_reports=num_reports, outcome=None)

    def _with_point(self, point: Progress) -> Story:
        kept = self.num_reports % self.stride == 0
        story = replace(self, num_reports=self.num_reports + 1)
        if not kept:
            return story
        points, stride = (*self.points, point), self.stride
        if len(points) > MAX_POINTS:
            points, stride = points[::2], stride * 2
        return replace(story, points=points, stride=stride)

    def _with_event(self, event: Event) -> Story:
        events = (*self.events, event)
        if Counter(e.kind for e in events)[event.kind] > MAX_EVENTS_OF_A_KIND:
            oldest = next(i for i, e in enumerate(events) if e.kind == event.kind)
            events = (*events[:oldest], *events[oldest + 1 :])
        return replace(self, events=events)


def _end(outcome: Outcome) -> Event:
    step = None if outcome.last is None else outcome.last.step
    text = f"{outcome.reason} (exit code {outcome.exit_code})"
    return Event(time_s=outcome.time_s, kind="end", text=text, step=step)
