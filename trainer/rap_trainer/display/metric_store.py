"""The values of declared metrics, in a form that is cheap to update from the training loop and quick to scrape.

A store refuses a metric that is not declared for it and labels that are not the metric's own. It is a Prometheus
collector: register it in a registry of its own. Not here: what the metrics are called (rap_contract.metrics) and HTTP.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from rap_contract.metrics import Kind, Metric

Labels = tuple[str, ...]


class _Histogram:
    """Counts by bucket, not cumulative, and their sum."""

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * (num_buckets + 1)
        self.sum = 0.0


class MetricStore(Collector):
    """Values by metric and labels. Thread-safe: the scrape runs in a thread of its own.

    Counters and histograms without labels exist from the start, at 0; everything else from its first value.
    """

    def __init__(self, declared: Iterable[Metric]) -> None:
        self._lock = Lock()
        self._declared = {metric.name: metric for metric in declared}
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {}
        for metric in self._declared.values():
            if metric.kind is Kind.HISTOGRAM:
                self._histograms[metric.name] = {}
                if not metric.labels:
                    self._histograms[metric.name][()] = _Histogram(len(metric.buckets))
            else:
                self._numbers[metric.name] = {(): 0.0} if metric.kind is Kind.COUNTER and not metric.labels else {}

    def inc(self, metric: Metric, amount: float = 1.0, **labels: object) -> None:
        """Raises a counter by `amount` >= 0."""
        assert metric.kind is Kind.COUNTER, metric.name
        assert amount >= 0, f"{metric.name} cannot fall by {amount}"
        key = _key(metric, labels)
        with self._lock:
            series = self._numbers[metric.name]
            series[key] = series.get(key, 0.0) + amount

    def raise_to(self, metric: Metric, total: float, **labels: object) -> None:
        """Sets a counter that is counted elsewhere; a smaller total than the one known is ignored."""
        assert metric.kind is Kind.COUNTER, metric.name
        key = _key(metric, labels)
        with self._lock:
            series = self._numbers[metric.name]
            series[key] = max(series.get(key, 0.0), total)

    def set(self, metric: Metric, value: float | None, **labels: object) -> None:
        """Sets a gauge; None, an unknown value, removes the series so that nobody reads an old one."""
        assert metric.kind is Kind.GAUGE, metric.name
        key = _key(metric, labels)
        with self._lock:
            if value is None:
                self._numbers[metric.name].pop(key, None)
            else:
                self._numbers[metric.name][key] = float(value)

    def set_info(self, metric: Metric, **labels: object) -> None:
        """Replaces the only series of an info metric."""
        key = _key(metric, labels)
        with self._lock:
            self._numbers[metric.name] = {key: 1.0}

    def read(self, metric: Metric) -> dict[Labels, float]:
        """A gauge's or counter's values by labels."""
        with self._lock:
            return dict(self._numbers[metric.name])

    def observe(self, metric: Metric, value: float, **labels: object) -> None:
        """Adds one value to a histogram."""
        counts = [0] * (len(metric.buckets) + 1)
        counts[bisect_left(metric.buckets, value)] = 1
        self.observe_counts(metric, counts, value, **labels)

    def observe_counts(self, metric: Metric, counts: Sequence[int], total: float, **labels: object) -> None:
        """Adds many values at once: counts by bucket, not cumulative, one more than the buckets, and their sum."""
        assert metric.kind is Kind.HISTOGRAM, metric.name
        assert len(counts) == len(metric.buckets) + 1, metric.name
        key = _key(metric, labels)
        with self._lock:
            histogram = self._histograms[metric.name].setdefault(key, _Histogram(len(metric.buckets)))
            histogram.counts = [a + b for a, b in zip(histogram.counts, counts, strict=True)]
            histogram.sum += total

    def collect(self) -> Iterator[Family]:
        """All families that have a series, as of one moment."""
        with self._lock:
            families = [_family(self._declared[name], series) for name, series in self._numbers.items() if series]
            families += [
                _histogram_family(self._declared[name], series) for name, series in self._histograms.items() if series
            ]
        yield from families


def _key(metric: Metric, labels: dict[str, object]) -> Labels:
    assert labels.keys() == set(metric.labels), f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}"
    return tuple(str(labels[name]) for name in metric.labels)


def _family(metric: Metric, series: dict[Labels, float]) -> Family:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram_family(metric: Metric, series: dict[Labels, _Histogram]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*(repr(float(bound)) for bound in metric.buckets), "+Inf"]
    for labels, histogram in series.items():
        cumulative, buckets = 0, []
        for bound, count in zip(bounds, histogram.counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        family.add_metric(labels, buckets, histogram.sum)
    return family
