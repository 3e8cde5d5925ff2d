"""Keeps a job's story in a file of JSON lines, so that the report's curves go on after a resume.

The file is appended to while the job runs and rewritten, aside and then renamed, when an attempt begins and when the
story is thinned out. A line cut off by a crash is skipped. It lies in the checkpoint directory, but is no part of a
checkpoint: losing it loses pictures, never the model.
"""

from __future__ import annotations

import json
from pathlib import Path

from rap_trainer.display.json_form import Shown, decode, encode
from rap_trainer.display.progress import Event, Outcome, Progress, Run
from rap_trainer.display.story import Story

FILE_NAME = "history.jsonl"


class History:
    """A sink that remembers; `story` is what it knows now. Raises OSError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0
        self.story = Story()

    def start(self, run: Run) -> None:
        self.story = read(self._path).with_(run)
        self._rewrite()

    def update(self, progress: Progress) -> None:
        before = self.story
        self._add(progress)
        if self.story.stride != before.stride:
            self._rewrite()
        elif self.story.points is not before.points:
            self._append(progress)

    def event(self, event: Event) -> None:
        self._add(event)
        self._append(event)

    def finish(self, outcome: Outcome) -> None:
        self._add(outcome)
        self._rewrite()

    def _add(self, value: Shown) -> None:
        self.story = self.story.with_(value)

    def _append(self, value: Shown) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(encode(value) + "\n")
        self._lines += 1
        if self._lines > 2 * self.story.num_values:
            self._rewrite()

    def _rewrite(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_name(self._path.name + ".tmp")
        aside.write_text(to_text(self.story), encoding="utf-8")
        aside.replace(self._path)
        self._lines = self.story.num_values


def to_text(story: Story) -> str:
    """A story as lines of JSON: the stride, then runs, points, events and the outcome."""
    values: list[Shown] = [*story.runs, *story.points, *story.events]
    if story.outcome is not None:
        values.append(story.outcome)
    header = json.dumps({"type": "story", "stride": story.stride})
    return "".join(line + "\n" for line in (header, *map(encode, values)))


def read(path: Path) -> Story:
    """The story in a file; an empty one if there is no file. Damaged lines are skipped."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Story()
    values = [value for line in text.split("\n") if (value := decode(line)) is not None]
    outcomes = [value for value in values if isinstance(value, Outcome)]
    return Story(
        stride=_stride(text),
        runs=tuple(value for value in values if isinstance(value, Run)),
        points=tuple(value for value in values if isinstance(value, Progress)),
        events=tuple(value for value in values if isinstance(value, Event)),
        outcome=outcomes[-1] if outcomes else None,
    )


def _stride(text: str) -> int:
    """The stride in the first line; 1 if that is damaged, which only keeps more points than needed."""
    try:
        stride = json.loads(text.partition("\n")[0])["stride"]
    except (ValueError, TypeError, KeyError):
        return 1
    return stride if isinstance(stride, int) and stride > 0 else 1
