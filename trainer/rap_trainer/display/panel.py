"""The live terminal panel: a run at a glance in 80 columns, drawn anew with each report.

Rendering is a function of values (`render`); only Panel touches the terminal. While it is open, what is printed or logged
to stdout or stderr appears above it. The cursor stays visible, so that a killed process leaves a usable terminal.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel as Frame
from rich.text import Text

from rap_trainer.display.lines import headline, summary
from rap_trainer.display.progress import Event, Outcome, Progress, Run, in_order
from rap_trainer.display.quantities import MISSING, clock, count, known, milliseconds, percent, ratio, seconds, spark

WIDTH = 80
SPARK_POINTS = 24
NUM_EVENTS = 3
INDENT = " " * 12
BAR_CELLS = WIDTH - 4 - len(INDENT)
PART_STYLES = ("blue", "yellow", "green", "magenta", "cyan", "bright_black", "red", "white")
"""Of the parts in the order they are drawn, again from the first after the last."""


class Panel:
    """A sink for a terminal. The last panel stays, with the summary under it."""

    def __init__(self, stream: TextIO, *, force_terminal: bool | None = None) -> None:
        self._console = Console(file=stream, force_terminal=force_terminal, highlight=False)
        self._live: Live | None = None
        self._run: Run | None = None
        self._handlers: list[logging.Handler] = []
        self._points: deque[Progress] = deque(maxlen=SPARK_POINTS)
        self._events: deque[Event] = deque(maxlen=NUM_EVENTS)

    def start(self, run: Run) -> None:
        self._run = run
        self._console.print(headline(run), style="dim")
        real = sys.stderr
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()
        self._console.show_cursor(True)
        self._handlers = [h for h in logging.getLogger().handlers if getattr(h, "stream", None) is real]
        self._redirect_logs()
        self._draw()

    def update(self, progress: Progress) -> None:
        self._points.append(progress)
        self._draw()

    def event(self, event: Event) -> None:
        self._events.append(event)
        self._draw()

    def finish(self, outcome: Outcome) -> None:
        if outcome.last is not None:
            self._points.append(outcome.last)
            self._draw()
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._redirect_logs()
        self._console.print(Text(summary(outcome)))

    def _redirect_logs(self) -> None:
        """Log handlers hold the stderr of their birth; while the panel is open, rich puts its own in its place."""
        for handler in self._handlers:
            assert isinstance(handler, logging.StreamHandler)
            handler.setStream(sys.stderr)

    def _draw(self) -> None:
        if self._live is not None and self._run is not None:
            self._live.update(render(self._run, self._points, self._events), refresh=True)


def render(run: Run, points: Iterable[Progress], events: Iterable[Event]) -> RenderableType:
    """The panel of the newest point; the points before it give the sparklines."""
    points = tuple(points)
    rows: list[RenderableType] = [Text("waiting for the first step", style="dim")]
    if points:
        rows = [*_speed(points), *_parts(points[-1].parts_ms), *_quality(points), *_state(points[-1])]
    rows += [_event_line(event) for event in events]
    ranks = f"{run.world} rank{'s' if run.world != 1 else ''}"
    title = Text.assemble((run.job, "bold"), f" · attempt {run.attempt} · {ranks} · {run.device} · {run.runtime}")
    elapsed = seconds(points[-1].time_s - run.time_s) if points else None
    return Frame(
        Group(*rows),
        title=title,
        title_align="left",
        subtitle=elapsed,
        subtitle_align="right",
        width=WIDTH,
        border_style="bright_black",
    )


def _row(label: str, *cells: str | Text) -> Text:
    """A label and up to three columns that fill 76 cells; rich's tables would take ten times as long to lay out."""
    line = Text.assemble((label.ljust(10), "bright_black"))
    for cell in cells:
        line.append("  ")
        text = Text(cell) if isinstance(cell, str) else cell
        text.truncate(20, overflow="ellipsis", pad=True)
        line.append_text(text)
    return line


def _speed(points: tuple[Progress, ...]) -> list[Text]:
    now = points[-1]
    rate = Text.assemble((count(now.rows_per_s), "bold green"), " rows/s")
    rates = Text(spark(_series(points, "rows_per_s")[-20:]), "green")
    exposed = Text.assemble("exposed ", (percent(now.exposed_ratio), _warn(now.exposed_ratio, 0.2)))
    return [
        _row("speed", rate, rates, f"{count(now.rows)} rows"),
        _row("step", Text(milliseconds(now.step_ms), "bold"), exposed, f"step {now.step:,}"),
    ]


def _parts(parts_ms: Mapping[str, float]) -> list[Text]:
    """The step by part: one bar, and a legend that wraps."""
    order = in_order(name for name, ms in parts_ms.items() if ms > 0)
    total = sum(parts_ms.values())
    if total <= 0:
        return []
    bar, legend = Text(INDENT), [Text(INDENT)]
    done, drawn = 0.0, 0
    for name in order:
        done += parts_ms[name]
        cells = round(BAR_CELLS * done / total) - drawn
        drawn += cells
        style = PART_STYLES[in_order(parts_ms).index(name) % len(PART_STYLES)]
        bar.append("█" * cells, style)
        entry = Text.assemble(("■ ", style), f"{name} {parts_ms[name]:.1f}  ")
        if len(legend[-1]) + len(entry) > WIDTH - 2:  # two closing blanks may overhang
            legend.append(Text(INDENT))
        legend[-1].append_text(entry)
    for line in legend:
        line.rstrip()
    return [bar, *legend]


def _quality(points: tuple[Progress, ...]) -> list[Text]:
    now = points[-1]
    entropy = Text.assemble(
        "NE ",
        (ratio(now.normalized_entropy), f"bold {_warn(now.normalized_entropy, 1.0) or 'green'}"),
        (" " + spark(_series(points, "normalized_entropy")[-10:]), "bright_black"),
    )
    error = f" ±{now.auc_error:.4f}" if known(now.auc_error) is not None else ""
    auc = Text.assemble(f"AUC {ratio(now.auc)}", (error, "bright_black"))
    life = f"NE {ratio(now.life_normalized_entropy)}", f"AUC {ratio(now.life_auc)}"
    return [
        _row("window", entropy, auc, f"calibration {ratio(now.calibration, 3)}"),
        _row("life", *life, f"calibration {ratio(now.life_calibration, 3)}"),
    ]


def _state(now: Progress) -> list[Text]:
    lag = MISSING if now.lag_records is None else f"{count(now.lag_records)} rows"
    behind = f"{seconds(now.lag_s)} behind" if now.lag_s is not None else ""
    starved = Text.assemble("starved ", (seconds(now.starved_s), "yellow" if now.starved_s > 0 else ""))
    saved = "none yet" if now.checkpoint_age_s is None else f"{seconds(now.checkpoint_age_s)} ago"
    at = "" if now.checkpoint_step is None else f"at step {now.checkpoint_step:,}"
    bad = Text.assemble("bad rows ", (count(now.bad_rows), "yellow" if now.bad_rows else ""))
    return [
        _row("freshness", f"p50 {seconds(now.freshness_p50_s)}", f"p99 {seconds(now.freshness_p99_s)}"),
        _row("lag", lag, behind, starved),
        _row("checkpoint", saved, at, bad),
    ]


def _event_line(event: Event) -> Text:
    line = Text.assemble((clock(event.time_s), "bright_black"), "  ", " ".join(event.sentence.split()))
    line.truncate(WIDTH - 4, overflow="ellipsis")
    return line


def _warn(value: float | None, limit: float) -> str:
    """Red at or above the limit."""
    return "red" if value is not None and value >= limit else ""


def _series(points: tuple[Progress, ...], name: str) -> list[float]:
    return [value for point in points if (value := known(getattr(point, name))) is not None]
