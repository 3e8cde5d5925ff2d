"""Several sinks as one: all are told, and a broken one never stops training."""

from __future__ import annotations

import errno
import io
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from display.story_samples import CHECKPOINT, FULL, OUTCOME, RUN, at_step
from rap_trainer.display import FORMS, Display, Event, History, Outcome, Progress, Report, Run, terminal


class Listener:
    """A sink that remembers what it was told, and fails at the values it is asked to."""

    def __init__(self, *, fail_at: object = None) -> None:
        self.told: list[object] = []
        self._fail_at = fail_at

    def start(self, run: Run) -> None:
        self._hear(run)

    def update(self, progress: Progress) -> None:
        self._hear(progress)

    def event(self, event: Event) -> None:
        self._hear(event)

    def finish(self, outcome: Outcome) -> None:
        self._hear(outcome)

    def _hear(self, value: object) -> None:
        if value == self._fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.told.append(value)


def tell(display: Display) -> None:
    display.start(RUN)
    display.update(FULL)
    display.event(CHECKPOINT)
    display.finish(OUTCOME)


def test_every_sink_is_told_everything_in_order() -> None:
    listeners = [Listener(), Listener()]
    tell(Display(listeners))
    assert all(listener.told == [RUN, FULL, CHECKPOINT, OUTCOME] for listener in listeners)


def test_a_sink_that_fails_is_dropped_with_one_warning_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Listener(fail_at=FULL), Listener()
    with caplog.at_level(logging.WARNING):
        tell(Display([broken, sound]))
    assert broken.told == [RUN]
    assert sound.told == [RUN, FULL, CHECKPOINT, OUTCOME]
    assert [record.message for record in caplog.records] == [
        "Listener shows no more: [Errno 28] No space left on device; training goes on"
    ]


def test_a_report_without_a_place_to_write_does_not_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    history = History(tmp_path / "file" / "history.jsonl")
    listener = Listener()
    tell(Display([history, Report(history, tmp_path / "file" / "report.html"), listener]))
    assert listener.told[-1] == OUTCOME
    assert len(caplog.records) == 2


def test_the_end_says_where_the_report_is(tmp_path: Path) -> None:
    listener, history = Listener(), History(tmp_path / "history.jsonl")
    tell(Display([listener, history, Report(history, tmp_path / "report.html")]))
    assert listener.told[-1] == replace(OUTCOME, report=str(tmp_path / "report.html"))


def test_a_file_name_that_is_no_text_is_shown_somehow_everywhere(tmp_path: Path) -> None:
    raw = io.BytesIO()
    streams = [io.TextIOWrapper(raw, encoding="utf-8") for _ in FORMS]
    history = History(tmp_path / "history.jsonl")
    report = Report(history, tmp_path / "report.html")
    display = Display([*map(terminal, streams, FORMS), history, report])
    display.start(RUN)
    display.event(replace(CHECKPOINT, text="file \udcff.parquet was set aside"))
    display.finish(OUTCOME)
    assert "was set aside" in (tmp_path / "report.html").read_text()
    assert history.story.events[0].text == "file \udcff.parquet was set aside"
    for stream in streams:
        stream.detach()


def test_no_sinks_are_a_display_too() -> None:
    display = Display()
    tell(display)
    display.update(at_step(3))
