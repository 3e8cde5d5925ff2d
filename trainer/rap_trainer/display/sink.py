"""What every display offers the training loop, and how several become one.

    display = Display([terminal(sys.stdout), history, Report(history, path)])    # rank 0 only
    display.start(run); display.update(progress); display.event(event); display.finish(outcome)

Each method is called from the training thread, `update` about once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from rap_trainer.display.progress import Event, Outcome, Progress, Run
from rap_trainer.display.report import Report

log = logging.getLogger(__name__)


class Sink(Protocol):
    """One place where a run is shown. May raise OSError (disk full, closed pipe); nothing else."""

    def start(self, run: Run) -> None:
        """An attempt begins; called once, first."""

    def update(self, progress: Progress) -> None:
        """New numbers."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def finish(self, outcome: Outcome) -> None:
        """The attempt is over; called once, last, also after a failure."""


class Display:
    """Several sinks as one. A sink that fails with OSError is dropped with a warning: training goes on.

    At the end all of them are told where the Report among them, if there is one, writes its page.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = list(sinks)

    def start(self, run: Run) -> None:
        self._each("start", run)

    def update(self, progress: Progress) -> None:
        self._each("update", progress)

    def event(self, event: Event) -> None:
        self._each("event", event)

    def finish(self, outcome: Outcome) -> None:
        for sink in self._sinks:
            if isinstance(sink, Report):
                outcome = replace(outcome, report=str(sink.path))
        self._each("finish", outcome)

    def _each(self, method: str, value: object) -> None:
        for sink in tuple(self._sinks):
            try:
                getattr(sink, method)(value)
            except OSError as error:
                self._sinks.remove(sink)
                log.warning("%s shows no more: %s; training goes on", type(sink).__name__, error)
