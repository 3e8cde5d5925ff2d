"""One self-contained HTML page about a job: curves of quality and speed, time by part, and what happened.

The page needs nothing from outside: no script, no font, no link. `page` is a function of a story; Report is the sink that
writes it at the end and, so that a killed run has one too, every WRITE_INTERVAL_S.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from rap_contract.pod import ExitCode

from rap_trainer.display.history import History
from rap_trainer.display.lines import headline
from rap_trainer.display.progress import Event, Outcome, Progress, Run
from rap_trainer.display.report_curves import curves
from rap_trainer.display.report_tables import attempts, events, tiles
from rap_trainer.display.story import Story

WORDS = (
    "Normalized entropy (NE): log loss over the entropy of the click rate; below 1 the model knows more than that rate. "
    "Calibration: sum of predictions over sum of clicks; 1 is right. Every row is scored before it is learned from. "
    "Freshness: event time to optimizer step. Exposed: share of the step that waits for preprocessing. Times are UTC."
)
REPORT_NAME = "report.html"
WRITE_INTERVAL_S = 60.0


class Report:
    """A sink that writes the page from what a History remembers; it comes after that History in a Display."""

    def __init__(self, history: History, path: Path) -> None:
        self._history = history
        self.path = path
        self._next_s = float("-inf")

    def start(self, run: Run) -> None:
        self._next_s = run.time_s + WRITE_INTERVAL_S

    def update(self, progress: Progress) -> None:
        if progress.time_s >= self._next_s:
            self._next_s = progress.time_s + WRITE_INTERVAL_S
            self._write()

    def event(self, event: Event) -> None:
        """The history has it."""

    def finish(self, outcome: Outcome) -> None:
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(self.path.name + ".tmp")
        aside.write_text(page(self._history.story), encoding="utf-8", errors="replace")  # odd file names
        aside.replace(self.path)


def page(story: Story) -> str:
    """The report as HTML; also for a story without a single point, or without a run."""
    run = story.runs[-1] if story.runs else None
    name = run.job if run else "no run"
    about = f'<p class="about">{escape(headline(run)) if run else "Nothing was trained yet."}</p>'
    body = [
        f"<header><h1>{escape(name)}</h1>{_badge(story)}</header>{about}",
        f'<div class="tiles">{tiles(story)}</div>',
        f'<div class="cards">{curves(story)}{attempts(story.runs)}{events(story.events)}</div>',
        f"<footer>{WORDS}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} – RAP report</title><style>{_style()}</style></head>"  # noqa: RUF001  # a dash is meant
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


@cache
def _style() -> str:
    return files(__package__ or "").joinpath("report.css").read_text(encoding="utf-8")


def _badge(story: Story) -> str:
    outcome = story.outcome
    if outcome is None:
        return '<span class="badge warn">running or killed</span>' if story.runs else ""
    tone = "good" if outcome.exit_code == 0 else "warn" if outcome.exit_code == ExitCode.TERMINATED else "bad"
    return f'<span class="badge {tone}">{escape(outcome.reason)} · exit code {outcome.exit_code}</span>'
