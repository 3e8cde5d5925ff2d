"""A board as one SVG from the answers to its queries: what a user will see in Grafana, for the docs.

Grafana itself is not needed to make it. Not here: asking Prometheus.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from boards.panels import Board, Form, Panel, Unit

_COLUMN, _LINE, _GAP, _HEAD = 50, 36, 8, 40
"""Pixels of a column, of a row's unit of height, between panels, and above the first row."""
_COLORS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#37872d")
_NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c"}
_TICKS = 4


@dataclass(frozen=True)
class Line:
    """One series of a panel: its name, and (Unix time, value) pairs."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def latest(self) -> float | None:
        return self.points[-1][1] if self.points else None


Answers = Mapping[tuple[str, str], Sequence[Line]]
"""The lines of each panel, by the titles of its row and its own."""


def as_svg(board: Board, answers: Answers) -> str:
    """The board from top to bottom."""
    shapes: list[str] = []
    y = _HEAD
    for row in board.rows:
        shapes.append(_text(_GAP, y + 20, f"▾ {row.title}", size=15, bold=True))
        y += 30
        x = tallest = 0
        for panel in row.panels:
            if x + panel.width > 24:
                y, x, tallest = y + tallest * _LINE, 0, 0
            shapes.append(_panel(panel, answers.get((row.title, panel.title), ()), x * _COLUMN, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest * _LINE + _GAP
    title = _text(_GAP, 26, board.title, size=18, bold=True)
    width = 24 * _COLUMN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif"><rect width="100%" height="100%" fill="#111217"/>'
        f"{title}{''.join(shapes)}</svg>\n"
    )


def _panel(panel: Panel, lines: Sequence[Line], x: float, y: float) -> str:
    width, height = panel.width * _COLUMN - _GAP, panel.height * _LINE - _GAP
    frame = f'<rect width="{width}" height="{height}" rx="3" fill="#181b1f" stroke="#2c3235"/>'
    title = _text(10, 20, panel.title, size=12, bold=True)
    draw = {Form.STAT: _stat, Form.BARS: _bars}.get(panel.form, _chart)
    return f'<g transform="translate({x + _GAP / 2} {y})">{frame}{title}{draw(panel, lines, width, height)}</g>'


def _stat(panel: Panel, lines: Sequence[Line], width: float, height: float) -> str:
    value = lines[0].latest if lines else None
    color = _COLORS[0]
    for step in panel.thresholds:
        if value is not None and (step.value is None or value >= step.value):
            color = _NAMED[step.color]
    shown = "no data" if value is None else _quantity(value, panel.unit)
    size = int(min(30, 1.5 * width / len(shown)))
    return _text(width / 2, height / 2 + 22, shown, size=size, color=color, anchor="middle", bold=True)


def _bars(panel: Panel, lines: Sequence[Line], width: float, height: float) -> str:
    found = [line for line in lines if line.latest is not None]
    named = [line for line in found if line.name.strip(" /:")]  # a query's zero for want of any series has no name
    shown = (named or [Line("none", line.points) for line in found])[: int((height - 34) // 24)]
    largest = max((line.latest or 0.0 for line in shown), default=0.0) or 1.0
    parts = []
    for place, line in enumerate(shown):
        value, top = line.latest or 0.0, 34 + 24 * place
        length = max(value / largest, 0.0) * (width * 0.38)
        name = _fitted(line.name, width * 0.45, size=11)
        parts.append(_text(width * 0.46, top + 13, name, size=11, anchor="end", color="#ccccdc"))
        parts.append(f'<rect x="{width * 0.48:.1f}" y="{top}" width="{length:.1f}" height="16" fill="{_COLORS[0]}"/>')
        parts.append(_text(width * 0.49 + length, top + 13, _quantity(value, panel.unit), size=11))
    return "".join(parts)


def _chart(panel: Panel, lines: Sequence[Line], width: float, height: float) -> str:
    has_points = any(line.points for line in lines)
    lines = [line for line in lines if any(math.isfinite(value) for _, value in line.points)]
    if not lines:
        why = "a run on CPUs has none" if panel.needs_gpu else "∞ all the time" if has_points else "no data"
        return _text(width / 2, height / 2, why, size=13, anchor="middle", color="#8e8e98")
    shown = _stacked(lines) if panel.form is Form.STACKED else lines
    times = [at for line in shown for at, _ in line.points]
    values = [value for line in shown for _, value in line.points if math.isfinite(value)]
    low, high = _range(min(values), max(values))
    ticks = [low + (high - low) * tick / _TICKS for tick in range(_TICKS + 1)]
    longest = max(len(_quantity(value, panel.unit)) for value in ticks)
    left, right, top, bottom = 14 + 5.8 * longest, width - 10, 34.0, height - 40
    start, span = min(times), max(max(times) - min(times), 1e-9)

    def place(at: float, value: float) -> str:
        return f"{left + (at - start) / span * (right - left):.1f},{bottom - (value - low) / (high - low) * (bottom - top):.1f}"

    parts = []
    for tick, value in enumerate(ticks):
        level = bottom - (bottom - top) * tick / _TICKS
        parts.append(f'<path d="M{left} {level:.1f}H{right}" stroke="#26292e"/>')
        parts.append(_text(left - 6, level + 4, _quantity(value, panel.unit), size=10, anchor="end", color="#9a9aa8"))
    x = left
    for number, line in enumerate(shown):
        color = _COLORS[number % len(_COLORS)]
        path = " ".join(place(at, value) for at, value in line.points if math.isfinite(value))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if x < right - 30:
            parts.append(f'<rect x="{x:.0f}" y="{height - 20}" width="10" height="3" fill="{color}"/>')
            name = _fitted(line.name, right - x - 14, size=10)
            parts.append(_text(x + 14, height - 14, name, size=10, color="#ccccdc"))
            x += 26 + 6 * len(line.name)
    return "".join(parts)


def _stacked(lines: Sequence[Line]) -> list[Line]:
    """Each line on top of those before it."""
    below: dict[float, float] = {}
    stacked = []
    for line in lines:
        for at, value in line.points:
            below[at] = below.get(at, 0.0) + value
        stacked.append(Line(line.name, tuple((at, below[at]) for at, _ in line.points)))
    return stacked


def _range(low: float, high: float) -> tuple[float, float]:
    """The axis: from 0 where values are near it, never empty."""
    if low > 0 and low < 0.6 * high:
        low = 0.0
    if high - low < 1e-12:
        high = low + (abs(low) or 1.0)
    return low, high


_UNITS: dict[Unit, tuple[tuple[float, str], ...]] = {
    Unit.SECONDS: ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    Unit.BYTES: ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
}
_PLAIN = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_SUFFIX = {Unit.ROWS_PER_SECOND: " rows/s", Unit.PER_SECOND: "/s"}


def _quantity(value: float, unit: Unit) -> str:
    """A value with three digits and its unit."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    if unit is Unit.RATIO:
        return f"{value * 100:.3g} %"
    if value == 0:
        return f"0{_SUFFIX.get(unit, '')}"
    scale, name = next(((scale, name) for scale, name in _UNITS.get(unit, _PLAIN) if abs(value) >= scale), (1.0, ""))
    space = " " if unit in _UNITS else ""
    return f"{value / scale:.3g}{space}{name}{_SUFFIX.get(unit, '')}"


def _fitted(text: str, room: float, *, size: int) -> str:
    """As much of a text's end as fits into so many pixels."""
    most = max(int(room / (0.6 * size)), 1)
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def _text(
    x: float, y: float, text: str, *, size: int, color: str = "#d8d9da", anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
