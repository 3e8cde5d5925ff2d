"""What a dashboard shows, as plain data: boards of rows of panels of queries.

Grafana's JSON is made from it (`grafana`), a test runs its queries, and `draw` draws it for the docs. Not here: any
board's content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rap_contract.metrics import Kind, Metric

RATE_INTERVAL = "$__rate_interval"
"""Grafana's: at least four scrapes."""


class Unit(StrEnum):
    """Grafana's identifiers of units."""

    SECONDS = "s"
    BYTES = "bytes"
    RATIO = "percentunit"
    ROWS_PER_SECOND = "rowsps"
    COUNT = "short"
    PER_SECOND = "cps"
    NONE = "none"


class Form(StrEnum):
    """How a panel shows its queries."""

    STAT = "stat"
    SERIES = "series"
    STACKED = "stacked"
    BARS = "bars"
    """One bar a series, the newest value."""


@dataclass(frozen=True)
class Query:
    """PromQL and the name of each series it gives, with `{{label}}` for a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Threshold:
    """From `value` on, the colour; the first one has no value."""

    value: float | None
    color: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. `about` says what a good value is and where to look when it is not."""

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: Unit = Unit.COUNT
    form: Form = Form.SERIES
    thresholds: tuple[Threshold, ...] = ()
    width: int = 8
    """Of 24 columns."""
    height: int = 7
    needs_gpu: bool = False
    """Has no data where ranks train on CPUs."""


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice above the board: the values of a label."""

    name: str
    label: str
    metric: str
    """A PromQL selector: whose label is listed."""
    source_label: str


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard. `uid` is stable: links use it."""

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    links: tuple[tuple[str, str], ...] = field(default=())
    """(title, uid) of the other boards."""

    @property
    def panels(self) -> list[Panel]:
        """All panels from top to bottom."""
        return [panel for row in self.rows for panel in row.panels]


def below(*bounds: tuple[float, str]) -> tuple[Threshold, ...]:
    """Green, then the colour of each bound from it on."""
    return (Threshold(None, "green"), *(Threshold(value, color) for value, color in bounds))


def rate(metric: Metric, selector: str, by: Sequence[str] = (), *, over: str = RATE_INTERVAL) -> str:
    """A counter's increase a second, summed over all series or by labels. Raises ValueError for a foreign label."""
    if metric.kind is not Kind.COUNTER:
        raise ValueError(f"{metric.name} is a {metric.kind}, a rate is of a counter")
    return _sum(f"rate({metric.name}{{{selector}}}[{over}])", metric, by)


def events(metric: Metric, selector: str, by: Sequence[str] = ()) -> str:
    """How often a rare counter rose over the chosen time; 0 where its series does not exist yet."""
    total = _sum(f"increase({metric.name}{{{selector}}}[$__range])", metric, by)
    return f"{total} or vector(0)"


def gauge(metric: Metric, selector: str, by: Sequence[str] = (), *, over: str = "max") -> str:
    """A gauge over all pods, or by labels, by Prometheus's aggregation `over`."""
    _check(metric, by)
    return f"{over}{_by(by)}({metric.name}{{{selector}}})"


def quantile(share: float, metric: Metric, selector: str, by: Sequence[str] = ()) -> str:
    """A quantile of a histogram's last minutes."""
    _check(metric, by)
    grouped = ", ".join(("le", *by))
    return (
        f"histogram_quantile({share}, sum by ({grouped}) (rate({metric.name}_bucket{{{selector}}}[{RATE_INTERVAL}])))"
    )


def _sum(vector: str, metric: Metric, by: Sequence[str]) -> str:
    _check(metric, by)
    return f"sum{_by(by)}({vector})"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""


_OF_THE_TARGET = frozenset({"namespace", "pod", "rapjob", "job", "instance"})


def _check(metric: Metric, by: Sequence[str]) -> None:
    foreign = set(by) - set(metric.labels) - _OF_THE_TARGET
    if foreign:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(foreign))}; it has {', '.join(metric.labels)}")
