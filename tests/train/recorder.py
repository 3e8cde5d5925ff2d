"""A display that keeps what it is shown, for tests to look at."""

from __future__ import annotations

from rap_trainer.display import Event, Outcome, Progress, Run


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.progress: list[Progress] = []
        self.events: list[Event] = []
        self.outcomes: list[Outcome] = []

    def start(self, run: Run) -> None:
        self.runs.append(run)

    def update(self, progress: Progress) -> None:
        self.progress.append(progress)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def finish(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def texts(self, kind: str) -> list[str]:
        """Texts of all events of a kind."""
        return [event.text for event in self.events if event.kind == kind]
