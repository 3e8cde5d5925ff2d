"""The live panel: readable at 80 columns, whatever it is given."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from display.story_samples import BARE, CHECKPOINT, FULL, NOW_S, OUTCOME, RUN, at_step
from rap_trainer.display import Event, Progress, Run, terminal
from rap_trainer.display.lines import JsonLines, Plain
from rap_trainer.display.panel import Panel, render
from rich.console import Console

PANEL = """\
╭─ clicks · attempt 2 · 2 ranks · cpu · eager ─────────────────────────────────╮
│ speed       41.2k rows/s          ▁█                    10.1M rows           │
│ step        48.2 ms               exposed 3.1 %         step 1,234           │
│             ████████████████████████████████████████████████████████████████ │
│             ■ data 3.0  ■ preprocess 5.2  ■ forward 14.0  ■ backward 21.0    │
│             ■ update 3.5  ■ other 1.5                                        │
│ window      NE 0.8123 ▁           AUC 0.7712 ±0.0005    calibration 1.020    │
│ life        NE 0.8341             AUC 0.7602            calibration 1.010    │
│ freshness   p50 1.2 s             p99 3.4 s                                  │
│ lag         12.3k rows            300 ms behind         starved 0 s          │
│ checkpoint  12 s ago              at step 1,200         bad rows 12          │
│ 20:27:51  checkpoint: step 1,200 in 0.8 s                                    │
╰───────────────────────────────────────────────────────────────── 1 min 23 s ─╯
"""


def drawn(run: Run, points: Iterable[Progress], events: Iterable[Event] = (), *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(render(run, points, events))
    return capture.get()


def test_the_panel_is_frozen() -> None:
    assert drawn(RUN, [BARE, FULL], [CHECKPOINT]) == PANEL


def test_before_the_first_step_the_panel_says_so() -> None:
    assert "waiting for the first step" in drawn(RUN, [])


@pytest.mark.parametrize(
    "point",
    [
        BARE,
        replace(FULL, loss=math.nan, normalized_entropy=math.nan, rows_per_s=math.nan, step_ms=math.inf),
        replace(FULL, rows=10**15, step=10**12, lag_records=10**14, lag_s=1e7, checkpoint_age_s=1e7, bad_rows=10**9),
        replace(FULL, parts_ms={f"a part with a long name {i}": 1.0 for i in range(20)}),
        replace(FULL, parts_ms={"data": 0.0}),
    ],
    ids=["bare", "no numbers", "huge numbers", "many parts", "no time at all"],
)
def test_every_line_is_80_columns_wide(point: Progress) -> None:
    event = Event(time_s=NOW_S, kind="warning", text="a sentence that is far\ntoo long for one line " * 5)
    lines = drawn(RUN, [point] * 30, [event]).splitlines()
    assert {len(line) for line in lines} == {80}
    assert sum("a sentence that is far too long" in line for line in lines) == 1


def test_markup_in_names_and_texts_is_shown_as_it_is() -> None:
    event = Event(time_s=NOW_S, kind="warning", text="[red]file[/] [1]")
    text = drawn(replace(RUN, device="NVIDIA [H200]"), [BARE], [event])
    assert "NVIDIA [H200]" in text
    assert "[red]file[/] [1]" in text


def test_a_whole_run_leaves_the_last_panel_and_the_summary() -> None:
    stream = io.StringIO()
    panel = Panel(stream, force_terminal=True)
    panel.start(RUN)
    for step in range(1, 60):
        panel.update(at_step(step))
    panel.event(CHECKPOINT)
    panel.finish(OUTCOME)
    assert stream.getvalue().rstrip().endswith("/checkpoints/clicks/report.html")


def test_a_killed_process_leaves_a_terminal_with_a_cursor() -> None:
    stream = io.StringIO()
    panel = Panel(stream, force_terminal=True)
    panel.start(RUN)
    panel.update(FULL)
    before_the_end = stream.getvalue()
    panel.finish(OUTCOME)
    assert before_the_end.rfind("\x1b[?25h") > before_the_end.rfind("\x1b[?25l")


def test_log_lines_appear_above_the_open_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, stderr = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    handler = logging.StreamHandler(stderr)
    logging.getLogger().addHandler(handler)
    try:
        panel = Panel(stream, force_terminal=True)
        panel.start(RUN)
        logging.getLogger("rap").warning("a file was set aside")
        panel.finish(OUTCOME)
        logging.getLogger("rap").warning("after the end")
    finally:
        logging.getLogger().removeHandler(handler)
    assert "a file was set aside" in stream.getvalue()
    assert stderr.getvalue() == "after the end\n"


def test_an_end_before_the_start_is_shown_too() -> None:
    stream = io.StringIO()
    Panel(stream).finish(replace(OUTCOME, last=None))
    assert "Ended: the source has ended" in stream.getvalue()


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_panel_and_a_pipe_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    assert isinstance(terminal(Tty()), Panel)
    assert isinstance(terminal(io.StringIO()), Plain)
    assert isinstance(terminal(Tty(), "plain"), Plain)
    assert isinstance(terminal(Tty(), "json"), JsonLines)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(terminal(Tty()), Plain)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "79")
    assert isinstance(terminal(Tty()), Plain), "too narrow"


def test_a_stream_that_knows_only_ascii_does_not_stop_training() -> None:
    raw = io.BytesIO()
    sink = terminal(io.TextIOWrapper(raw, encoding="ascii"), "panel")
    sink.start(RUN)
    sink.update(FULL)
    sink.finish(OUTCOME)
    assert b"NE 0.8123" in raw.getvalue()
