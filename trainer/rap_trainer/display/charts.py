"""Charts as inline SVG: lines over steps and bars of parts. Functions from values to text; colours come from CSS classes.

A chart scales with the page; its size in units decides how large its text is beside it. Hovering shows the numbers of a place through SVG titles, so no
script is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from rap_trainer.display.axis import Axis, span
from rap_trainer.display.quantities import count

NARROW, WIDE = (540.0, 210.0), (1110.0, 270.0)
"""Width and height in units: about the pixels such a card has on a desktop."""
LEFT, TOP = 62.0, 10.0
NUM_COLORS = 8

EMPTY_DECIMALS = re.compile(r"\.0+(?!\d)")

Form = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve: one value per x of its chart, None where there is none."""

    name: str
    values: Sequence[float | None]
    color: int = 0
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line where something happened."""

    x: float
    text: str
    kind: str
    """`break` for restarts and the like, `tick` for checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What charts share: the x values, ascending, what happened where, and the size."""

    xs: Sequence[float]
    marks: Sequence[Mark] = ()
    size: tuple[float, float] = NARROW

    @property
    def right(self) -> float:
        return self.size[0] - 10.0

    @property
    def bottom(self) -> float:
        return self.size[1] - 26.0

    @property
    def x_axis(self) -> Axis:
        low, high = (min(self.xs), max(self.xs)) if self.xs else (0.0, 1.0)
        air = 0.0 if high > low else 0.5  # a single place is in the middle
        return Axis(low=low - air, high=high + air, start=LEFT, end=self.right)

    def y_axis(self, low: float, high: float) -> Axis:
        return Axis(low=low, high=high, start=self.bottom, end=TOP)


def line_chart(
    frame: Frame,
    lines: Sequence[Line],
    *,
    form: Form,
    floor: float | None = None,
    ceiling: float | None = None,
    reference: float | None = None,
) -> str:
    """Curves over the frame's x; `reference` is a dashed level that is always within sight."""
    values = [value for line in lines for value in line.values if value is not None]
    if not values:
        return NOTHING
    low, high = span([*values, *([] if reference is None else [reference])], floor=floor, ceiling=ceiling)
    y_axis = frame.y_axis(low, high)
    body = [_grid(frame, y_axis, form)]
    if reference is not None:
        y = y_axis.place(reference)
        body.append(f'<line class="reference" x1="{LEFT}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
    body.append(_plot(frame, [_curve(frame, y_axis, line) for line in lines]))
    body.append(_hover(frame, [(line.name, line.values) for line in lines], form))
    return _svg(frame, body)


def bar_chart(frame: Frame, parts: Mapping[str, Sequence[float]], *, form: Form, ceiling: float | None = None) -> str:
    """Stacked bars: one per x, one colour per part, first part at the bottom; cut off above the ceiling."""
    totals = [sum(column) for column in zip(*parts.values(), strict=True)]
    if not any(total > 0 for total in totals):
        return NOTHING
    low, high = span(totals, floor=0.0, ceiling=ceiling)
    y_axis = frame.y_axis(low, high)
    width = (frame.right - LEFT) / len(frame.xs)
    bars = []
    bases = [0.0] * len(totals)
    for color, values in enumerate(parts.values()):
        for i, value in enumerate(values):
            if value > 0:
                top, bottom = y_axis.place(bases[i] + value), y_axis.place(bases[i])
                x = LEFT + i * width + width * 0.08
                bars.append(
                    f'<rect class="bar c{color % NUM_COLORS}" x="{x:.1f}" y="{top:.1f}" '
                    f'width="{width * 0.84:.1f}" height="{bottom - top:.1f}"/>'
                )
            bases[i] += value
    body = [_grid(frame, y_axis, form, slots=True), _plot(frame, bars)]
    body.append(_hover(frame, [*parts.items(), ("all", totals)], form, slots=True))
    return _svg(frame, body)


def legend(entries: Sequence[tuple[str, int]]) -> str:
    """Names with their colours."""
    items = [f'<span><i class="c{color % NUM_COLORS}"></i>{escape(name)}</span>' for name, color in entries]
    return f'<div class="legend">{"".join(items)}</div>'


NOTHING = '<p class="nothing">no numbers yet</p>'


def _svg(frame: Frame, body: Sequence[str]) -> str:
    width, height = frame.size
    return f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img">{"".join(body)}</svg>'


def _plot(frame: Frame, body: Sequence[str]) -> str:
    """An inner picture that cuts off what is beyond the axes."""
    width, height = frame.right - LEFT, frame.bottom - TOP
    box = f'x="{LEFT}" y="{TOP}" width="{width}" height="{height}" viewBox="{LEFT} {TOP} {width} {height}"'
    return f'<svg class="plot" {box}>{"".join(body)}</svg>'


def _grid(frame: Frame, y_axis: Axis, form: Form, *, slots: bool = False) -> str:
    """Levels, labels of both axes and marks. `slots`: an x has a slot of equal width instead of a place on the axis."""
    parts = []
    for y, label in _labels(y_axis, form, most=6):
        parts.append(f'<line class="level" x1="{LEFT}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{y + 4:.1f}">{escape(label)}</text>')
    for x, label in _slot_labels(frame) if slots else _labels(frame.x_axis, count, most=8):
        parts.append(f'<text class="x" x="{x:.1f}" y="{frame.bottom + 18:.1f}">{escape(label)}</text>')
    parts.append(f'<text class="y" x="{LEFT - 8}" y="{frame.bottom + 18:.1f}">step</text>')
    for mark in () if slots else frame.marks:
        x = frame.x_axis.place(mark.x)
        top = TOP if mark.kind == "break" else frame.bottom - 7
        parts.append(
            f'<line class="mark {mark.kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{frame.bottom}">'
            f"<title>{escape(mark.text)}</title></line>"
        )
    return "".join(parts)


def _labels(axis: Axis, form: Form, *, most: int) -> list[tuple[float, str]]:
    """Places and labels of an axis; zeros after the point go if all labels have nothing else there."""
    ticks = axis.ticks(most)
    labels = [form(tick) for tick in ticks]
    short = [EMPTY_DECIMALS.sub("", label) for label in labels]
    if all("." not in label for label in short):
        labels = short
    first = [i for i, label in enumerate(labels) if label not in labels[:i]]
    return [(axis.place(ticks[i]), labels[i]) for i in first]


def _slot_labels(frame: Frame) -> list[tuple[float, str]]:
    """Labels under about eight of the slots."""
    width, every = (frame.right - LEFT) / len(frame.xs), -(-len(frame.xs) // 8)
    return [(LEFT + (i + 0.5) * width, count(x)) for i, x in enumerate(frame.xs) if i % every == 0]


def _curve(frame: Frame, y_axis: Axis, line: Line) -> str:
    """A path that is interrupted where there is no value; a lone value is a dot."""
    style = f"c{line.color % NUM_COLORS}{' faint' if line.faint else ''}"
    places = [
        None if value is None else f"{frame.x_axis.place(x):.1f} {y_axis.place(value):.1f}"
        for x, value in zip(frame.xs, line.values, strict=True)
    ]
    commands = [
        "" if here is None else f"L{here}" if before is not None else f"M{here}h0"
        for before, here in zip([None, *places], places, strict=False)
    ]
    alone = " alone" if sum(place is not None for place in places) == 1 else ""
    return f'<path class="curve {style}{alone}" d="{"".join(commands)}"/>'


def _hover(frame: Frame, rows: Sequence[tuple[str, Sequence[float | None]]], form: Form, *, slots: bool = False) -> str:
    """Invisible columns, one per x, each with its numbers as a title."""
    if slots:
        edges = [LEFT + i * (frame.right - LEFT) / len(frame.xs) for i in range(len(frame.xs) + 1)]
    else:
        places = [frame.x_axis.place(x) for x in frame.xs]
        edges = [LEFT, *((a + b) / 2 for a, b in pairwise(places)), frame.right]
    columns = []
    for i, (x, (left, right)) in enumerate(zip(frame.xs, pairwise(edges), strict=True)):
        numbers = [f"{name}: {form(value)}" for name, values in rows if (value := values[i]) is not None]
        title = escape("\n".join([f"step {x:,.0f}", *numbers]))
        columns.append(
            f'<rect class="hover" x="{left:.1f}" y="{TOP}" width="{right - left:.2f}" height="{frame.bottom - TOP}">'
            f"<title>{title}</title></rect>"
        )
    return "".join(columns)
