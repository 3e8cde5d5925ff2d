"""The report's charts: which numbers of a story go into which picture. Functions from values to HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean

from rap_trainer.display import quantities as q
from rap_trainer.display.charts import NOTHING, WIDE, Form, Frame, Line, Mark, bar_chart, legend, line_chart
from rap_trainer.display.progress import Event, Progress, in_order
from rap_trainer.display.story import Story

MAX_LINE_POINTS = 180  # of a curve: one per 3 units of a narrow chart
MAX_BARS = 60
QUIET_KINDS = ("checkpoint", "publish")  # ticks at the bottom; every other kind is a line over the whole chart
SILENT_KINDS = ("start", "end")

Groups = Sequence[Sequence[Progress]]


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Points in groups of neighbours, one group per place of a curve."""

    groups: Groups
    frame: Frame

    def line(self, name: str, of: str, *, color: int = 0, faint: bool = False) -> Line:
        """The mean of an attribute over each group, or for a 99th percentile the largest."""
        fold: Callable[[list[float]], float] = max if "p99" in of else fmean
        values = [
            fold(known) if (known := [v for p in group if (v := q.known(getattr(p, of))) is not None]) else None
            for group in self.groups
        ]
        return Line(name=name, values=values, color=color, faint=faint)

    def wide(self) -> _Data:
        """The same for a chart over the whole page."""
        return replace(self, frame=replace(self.frame, size=WIDE))

    def chart(
        self,
        lines: Sequence[Line],
        form: Form,
        *,
        floor: float | None = None,
        ceiling: float | None = None,
        reference: float | None = None,
    ) -> str:
        """The curves with their legend."""
        picture = line_chart(self.frame, lines, form=form, floor=floor, ceiling=ceiling, reference=reference)
        return legend([(line.name, line.color) for line in lines]) + picture


def curves(story: Story) -> str:
    """All charts that have something to show, as cards."""
    data = _data(story)
    wide = data.wide()
    line = data.line
    entropy = [line("window", "normalized_entropy"), line("life", "life_normalized_entropy", color=5, faint=True)]
    auc = [line("window", "auc"), line("life", "life_auc", color=5, faint=True)]
    calibration = [line("window", "calibration"), line("life", "life_calibration", color=5, faint=True)]
    fresh = [line("p50", "freshness_p50_s", color=4), line("p99", "freshness_p99_s", color=1)]
    lag = [line("rows waiting", "lag_records", color=3)]
    cards = [
        _card("Normalized entropy", wide.chart(entropy, _ratio, ceiling=_ceiling(entropy), reference=1.0), wide=True),
        _card("Time of a step by part", _parts(story.points), wide=True),
        _card("Rows trained per second", data.chart([line("all ranks", "rows_per_s", color=2)], q.count, floor=0.0)),
        _card("Freshness: event to optimizer step", data.chart(fresh, q.seconds, floor=0.0)),
        _card("AUC", data.chart(auc, _ratio)),
        _card("Calibration", data.chart(calibration, _ratio, ceiling=_ceiling(calibration), reference=1.0)),
        _card(
            "Exposed preprocessing", data.chart([line("share of step", "exposed_ratio", color=1)], q.percent, floor=0.0)
        ),
        _card("Lag", data.chart(lag, q.count, floor=0.0)),
    ]
    return "".join(cards)


def groups(points: Sequence[Progress], most: int) -> Groups:
    """Neighbouring points together, in at most `most` groups of nearly equal size."""
    size = max(-(-len(points) // most), 1)
    return [points[i : i + size] for i in range(0, len(points), size)]


def _data(story: Story) -> _Data:
    grouped = groups(story.points, MAX_LINE_POINTS)
    xs = [float(group[-1].step) for group in grouped]
    marks = [_mark(e) for e in story.events if e.step is not None and e.kind not in SILENT_KINDS]
    in_sight = [mark for mark in marks if xs and xs[0] <= mark.x <= xs[-1]]
    return _Data(groups=grouped, frame=Frame(xs=xs, marks=in_sight))


def _mark(event: Event) -> Mark:
    kind = "tick" if event.kind in QUIET_KINDS else "break"
    return Mark(x=float(event.step or 0), text=event.sentence, kind=kind)


def _ceiling(lines: Sequence[Line]) -> float | None:
    """The first batches of a fresh model lie far above everything after them: they leave the picture."""
    values = sorted(value for line in lines for value in line.values if value is not None)
    return max(1.02, 1.05 * values[int(0.97 * (len(values) - 1))]) if values else None


def _parts(points: Sequence[Progress]) -> str:
    grouped = groups([point for point in points if point.parts_ms], MAX_BARS)
    names = in_order(name for group in grouped for point in group for name, ms in point.parts_ms.items() if ms > 0)
    parts = {name: [fmean(q.known(p.parts_ms.get(name)) or 0.0 for p in group) for group in grouped] for name in names}
    frame = Frame(xs=[float(group[-1].step) for group in grouped], size=WIDE)
    totals = sorted(sum(column) for column in zip(*parts.values(), strict=True))
    # a few steps that waited long for rows leave the picture, so that the parts of the others can be seen
    ceiling = 3 * totals[len(totals) // 2] if totals else None
    return legend([(name, i) for i, name in enumerate(names)]) + bar_chart(
        frame, parts, form=q.milliseconds, ceiling=ceiling
    )


def _ratio(value: float) -> str:
    return q.ratio(value, 3)


def _card(title: str, chart: str, *, wide: bool = False) -> str:
    """A chart with its title; a small one that has nothing to show is left out."""
    if NOTHING in chart and not wide:
        return ""
    return f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}</h2>{chart}</section>'
