"""Plain and JSON output, as a person or a program reads it."""

from __future__ import annotations

import io
import json
import math
from dataclasses import fields, replace

import pytest
from display.story_samples import BARE, CHECKPOINT, FULL, NOW_S, OUTCOME, RUN
from rap_trainer.display import Event, Outcome, Progress, Run
from rap_trainer.display.json_form import decode, encode
from rap_trainer.display.lines import JsonLines, Plain, progress_line, summary

PLAIN = """\
20:26:40 clicks: attempt 2 on 2 ranks (cpu, eager), 8,192 rows a step from /data/events; begins with a fresh model
20:26:41 step 1 | 8,192 rows | 8,192 rows/s | 1,000 ms
20:27:51 checkpoint: step 1,200 in 0.8 s
20:28:03 step 1,234 | 10.1M rows | 41.2k rows/s | 48.2 ms | NE 0.8123 | AUC 0.7712 | calibration 1.020 | exposed 3.1 % \
| fresh p50 1.2 s p99 3.4 s | lag 12.3k (300 ms) | checkpoint 12 s ago | bad rows 12
Ended: the source has ended (exit code 0)
  trained     10,108,928 rows in 1,234 steps, 4 min 05 s, 41.3k rows/s
  quality     NE 0.8123, AUC 0.7712, calibration 1.020 over the window
  over life   NE 0.8341, AUC 0.7602, calibration 1.010 over 10.1M rows
  bad rows    12
  checkpoint  step 1,234
  report      /checkpoints/clicks/report.html
"""


def test_plain_output_reads_as_a_log() -> None:
    stream = io.StringIO()
    plain = Plain(stream)
    plain.start(RUN)
    plain.update(BARE)
    plain.event(CHECKPOINT)
    plain.update(FULL)
    plain.finish(OUTCOME)
    assert stream.getvalue() == PLAIN


def test_plain_output_skips_reports_between_its_lines() -> None:
    stream = io.StringIO()
    plain = Plain(stream, interval_s=10)
    for second in range(25):
        plain.update(replace(BARE, time_s=NOW_S + second, step=second))
    assert [line.split(" | ")[0].split("step ")[1] for line in stream.getvalue().splitlines()] == ["0", "10", "20"]


def test_a_resume_says_where_it_begins() -> None:
    stream = io.StringIO()
    Plain(stream).start(replace(RUN, resumed_step=1200, world=1))
    assert "attempt 2 on 1 rank (cpu, eager)" in stream.getvalue()
    assert stream.getvalue().endswith("resumes at step 1,200\n")


def test_a_run_without_a_step_has_a_summary() -> None:
    text = summary(
        Outcome(time_s=NOW_S, exit_code=2, reason="the source is empty", steps=0, rows=0, seconds=0.0, last=None)
    )
    assert text.splitlines() == [
        "Ended: the source is empty (exit code 2)",
        "  trained     0 rows in 0 steps, 0 s, – rows/s",  # noqa: RUF001  # a dash is meant
    ]


def test_numbers_that_are_none_are_shown_as_a_dash_and_not_as_nan() -> None:
    line = progress_line(replace(FULL, normalized_entropy=math.nan, auc=math.inf, rows_per_s=math.nan))
    assert "NE – | AUC –" in line  # noqa: RUF001  # a dash is meant
    assert "nan" not in line.lower()
    assert "inf" not in line.lower()


@pytest.mark.parametrize("value", [RUN, FULL, BARE, CHECKPOINT, OUTCOME], ids=lambda v: type(v).__name__)
def test_json_lines_come_back_as_they_were(value: Run | Progress | Event | Outcome) -> None:
    stream = io.StringIO()
    sink = JsonLines(stream)
    {Run: sink.start, Progress: sink.update, Event: sink.event, Outcome: sink.finish}[type(value)](value)  # type: ignore[operator]
    (line,) = stream.getvalue().splitlines()
    assert decode(line) == value


def test_a_json_line_is_frozen() -> None:
    data = json.loads(encode(FULL))
    assert data["type"] == "progress"
    assert data["normalized_entropy"] == 0.8123
    assert data["parts_ms"]["backward"] == 21.0
    assert set(data) == {"type", *(field.name for field in fields(Progress))}


def test_json_lines_hold_null_for_what_json_cannot_say() -> None:
    data = json.loads(encode(replace(FULL, loss=math.nan, parts_ms={"data": math.inf})))
    assert data["loss"] is None
    assert data["parts_ms"] == {"data": None}


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "3", "null", '{"type": "progress"', '{"type": "progress"}', '{"type": "other"}', "[" * 100_000],
    ids=["empty", "cut", "list", "number", "null", "cut object", "fields missing", "another type", "deep"],
)
def test_a_damaged_line_is_no_value(line: str) -> None:
    assert decode(line) is None


def test_a_newer_version_s_line_is_read_without_what_is_new() -> None:
    line = json.dumps({**json.loads(encode(CHECKPOINT)), "colour": "green"})
    assert decode(line) == CHECKPOINT
