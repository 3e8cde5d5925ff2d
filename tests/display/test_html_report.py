"""The HTML report: self-contained, well-formed, harmless, and there for every kind of run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from display.story_samples import BARE, CHECKPOINT, FULL, NOW_S, OUTCOME, RUN, at_step
from rap_trainer.display import Event, History, Report
from rap_trainer.display.report import WRITE_INTERVAL_S, page
from rap_trainer.display.story import Story

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Reads a page and checks that every tag closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def story(num_points: int = 300) -> Story:
    told = Story().with_(RUN)
    for step in range(num_points):
        told = told.with_(at_step(step))
    restart = Event(time_s=NOW_S, kind="restart", text="rank 1 was lost", step=150)
    return told.with_(CHECKPOINT).with_(restart).with_(OUTCOME)


STORIES = {
    "empty": Story(),
    "no step": Story().with_(RUN),
    "no step and failed": Story().with_(RUN).with_(replace(OUTCOME, last=None, exit_code=2)),
    "one bare point": Story().with_(RUN).with_(BARE),
    "one full point": Story().with_(RUN).with_(FULL),
    "no numbers": Story().with_(RUN).with_(replace(FULL, loss=math.nan, auc=math.inf, step_ms=math.nan)),
    "points of one step": Story().with_(RUN).with_(FULL).with_(FULL),
    "parts change": Story().with_(RUN).with_(FULL).with_(replace(FULL, step=2000, parts_ms={"emb_fwd": 2.0})),
    "long": story(2500),
    "killed": replace(story(), outcome=None),
}


@pytest.mark.parametrize("told", STORIES.values(), ids=STORIES)
def test_a_report_of_any_story_is_well_formed_and_has_no_nan(told: Story) -> None:
    text = page(told)
    reader = Reader(text)
    assert not re.search(r"\bnan\b|\binf\b", " ".join(reader.words), re.IGNORECASE)
    drawn = [value for tag, attributes in reader.tags if tag != "meta" for value in attributes.values() if value]
    assert not any(re.search(r"\bnan\b|\binf\b", value, re.IGNORECASE) for value in drawn)


@pytest.mark.parametrize("told", STORIES.values(), ids=STORIES)
def test_a_report_needs_nothing_from_outside(told: Story) -> None:
    text = page(told)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link|<img|<iframe|\bsrc=|\bhref=", text)


def test_a_report_stays_small() -> None:
    assert len(page(story(2500))) < 500_000


def test_a_report_tells_the_story() -> None:
    words = " ".join(Reader(page(story())).words)
    for expected in ("clicks", "the source has ended · exit code 0", "0.8123", "0.7712", "Normalized entropy"):
        assert expected in words
    for expected in ("backward", "rank 1 was lost", "step 1,200 in 0.8 s", "Freshness", "10.1M rows", "2 × cpu"):  # noqa: RUF001
        assert expected in words


def test_restarts_cross_the_charts_and_checkpoints_are_ticks() -> None:
    told = Story().with_(RUN)
    for step in range(300):
        told = told.with_(at_step(step))
    told = told.with_(replace(CHECKPOINT, step=100)).with_(Event(time_s=NOW_S, kind="restart", text="!", step=150))
    text = page(told.with_(Event(time_s=NOW_S, kind="restart", text="before the curve", step=4000)))
    charts = text.count('<svg class="chart"')
    assert text.count('class="mark tick"') == text.count('class="mark break"') == charts - 1, "all but the bars"


def test_a_few_steps_that_waited_long_leave_the_picture_of_the_parts() -> None:
    told = Story().with_(RUN)
    for step in range(60):
        wait = {"wait": 5000.0} if step in {20, 40} else {}
        told = told.with_(replace(at_step(step), parts_ms={**wait, **FULL.parts_ms}))
    text = page(told)
    assert "wait: 5,000 ms" in text, "the number is there"
    assert ">4,000 ms<" not in text, "the axis is for the others"


def test_what_was_never_measured_has_no_chart() -> None:
    told = Story().with_(RUN).with_(replace(FULL, lag_records=None, freshness_p50_s=None, freshness_p99_s=None))
    titles = re.findall("<h2>(.*?)</h2>", page(told))
    assert "Lag" not in titles
    assert "Freshness: event to optimizer step" not in titles
    assert "Calibration" in titles


def test_hovering_shows_the_numbers_of_a_place() -> None:
    assert "step 1,234\nwindow: 0.812\nlife: 0.834" in page(Story().with_(RUN).with_(FULL))


def test_text_from_outside_is_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    told = (
        Story()
        .with_(replace(RUN, job=evil, source=evil, device=evil))
        .with_(replace(FULL, parts_ms={evil: 1.0}))
        .with_(Event(time_s=NOW_S, kind=evil, text=evil, step=1234))
        .with_(replace(OUTCOME, reason=evil))
    )
    assert "<script" not in page(told)
    assert evil in " ".join(Reader(page(told)).words)


def test_the_page_follows_the_reader_s_light_or_dark_setting() -> None:
    text = page(Story())
    assert "color-scheme: light dark" in text
    assert "@media (prefers-color-scheme: dark)" in text


@pytest.mark.parametrize(("code", "tone"), [(0, "good"), (143, "warn"), (5, "bad"), (1, "bad")])
def test_the_badge_has_the_colour_of_the_end(code: int, tone: str) -> None:
    assert f'<span class="badge {tone}">' in page(Story().with_(RUN).with_(replace(OUTCOME, exit_code=code)))


def test_a_killed_run_has_a_report_too(tmp_path: Path) -> None:
    path, history = tmp_path / "report.html", History(tmp_path / "history.jsonl")
    report = Report(history, path)
    for sink in (history, report):
        sink.start(RUN)
    for second in range(int(WRITE_INTERVAL_S) + 2):
        for sink in (history, report):
            sink.update(replace(at_step(second), time_s=NOW_S + second))
    assert "running or killed" in path.read_text()
    history.finish(OUTCOME)
    report.finish(OUTCOME)
    assert "the source has ended" in path.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["history.jsonl", "report.html"]
