"""The store of metrics: only what is declared, in Prometheus' text format, right under threads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from rap_contract import metrics
from rap_contract.metrics import Kind, Metric
from rap_trainer.display import MetricStore

COUNTER, LABELLED = metrics.ROWS_TRAINED, metrics.BAD_RECORDS
GAUGE, HISTOGRAM = metrics.STEP, metrics.FRESHNESS_SECONDS


def samples(store: MetricStore) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would read."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(store)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def store() -> MetricStore:
    return MetricStore(metrics.TRAINER)


def test_counters_and_histograms_without_labels_are_there_from_the_start(store: MetricStore) -> None:
    found = samples(store)
    for metric in metrics.TRAINER:
        if metric.labels or metric.kind is Kind.GAUGE:
            assert not any(name.startswith(metric.name) and name == metric.name for name, _ in found)
        elif metric.kind is Kind.COUNTER:
            assert found[(metric.name, ())] == 0
        else:
            assert found[(f"{metric.name}_count", ())] == 0


def test_every_declared_metric_is_exposed_under_exactly_its_name(store: MetricStore) -> None:
    allowed = set()
    for metric in metrics.TRAINER:
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind is Kind.COUNTER:
            store.inc(metric, 2, **labels)
        elif metric.kind is Kind.GAUGE:
            store.set(metric, 3.5, **labels)
        else:
            store.observe(metric, 0.7, **labels)
        suffixes = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
        allowed |= {f"{metric.name}{suffix}" for suffix in suffixes}
    assert {name for name, _ in samples(store)} == allowed


def test_the_newer_text_format_holds_the_same(store: MetricStore) -> None:
    store.inc(LABELLED, 3, reason="json")
    store.observe(HISTOGRAM, 2.0)
    store.set(GAUGE, 7)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(store)
    text = openmetrics_exposition.generate_latest(registry).decode()  # type: ignore[no-untyped-call]  # theirs
    families = openmetrics_parser.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # theirs
    values = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}
    assert values == samples(store)


def test_counters_add_up_by_label(store: MetricStore) -> None:
    store.inc(LABELLED, reason="json")
    store.inc(LABELLED, 2, reason="json")
    store.inc(LABELLED, reason='a "quoted\\ \n line')
    found = samples(store)
    assert found[(LABELLED.name, (("reason", "json"),))] == 3
    assert found[(LABELLED.name, (("reason", 'a "quoted\\ \n line'),))] == 1


def test_a_total_counted_elsewhere_never_falls(store: MetricStore) -> None:
    for total in (5, 3, 7):
        store.raise_to(COUNTER, total)
    assert samples(store)[(COUNTER.name, ())] == 7


def test_an_unknown_gauge_disappears_instead_of_lying(store: MetricStore) -> None:
    store.set(GAUGE, 4)
    store.set(GAUGE, None)
    store.set(GAUGE, None)
    assert (GAUGE.name, ()) not in samples(store)


def test_an_info_metric_has_one_series(store: MetricStore) -> None:
    store.set_info(metrics.PLAN_INFO, plan="aaaa")
    store.set_info(metrics.PLAN_INFO, plan="bbbb")
    assert [key for key in samples(store) if key[0] == metrics.PLAN_INFO.name] == [
        (metrics.PLAN_INFO.name, (("plan", "bbbb"),))
    ]


@settings(deadline=None)
@given(values=st.lists(st.floats(0, 1e6), max_size=30))
def test_a_histogram_counts_like_prometheus(values: list[float]) -> None:
    one_by_one = MetricStore(metrics.TRAINER)
    for value in values:
        one_by_one.observe(HISTOGRAM, value)
    found = samples(one_by_one)
    for bound in HISTOGRAM.buckets:
        assert found[(f"{HISTOGRAM.name}_bucket", (("le", repr(bound)),))] == sum(value <= bound for value in values)
    assert found[(f"{HISTOGRAM.name}_bucket", (("le", "+Inf"),))] == len(values)
    assert found[(f"{HISTOGRAM.name}_sum", ())] == pytest.approx(sum(values))


def test_many_observations_at_once_are_as_one_by_one(store: MetricStore) -> None:
    counts = [0] * (len(HISTOGRAM.buckets) + 1)
    counts[3], counts[-1] = 5, 2
    store.observe_counts(HISTOGRAM, counts, 11.0)
    store.observe_counts(HISTOGRAM, counts, 11.0)
    found = samples(store)
    assert found[(f"{HISTOGRAM.name}_count", ())] == 14
    assert found[(f"{HISTOGRAM.name}_sum", ())] == 22
    assert found[(f"{HISTOGRAM.name}_bucket", (("le", repr(HISTOGRAM.buckets[3])),))] == 10


MISUSES = {
    "labels missing": lambda store: store.inc(LABELLED),
    "a label too many": lambda store: store.inc(COUNTER, reason="x"),
    "a falling counter": lambda store: store.inc(COUNTER, -1),
    "a gauge incremented": lambda store: store.inc(GAUGE),
    "a counter set": lambda store: store.set(COUNTER, 1),
    "too few buckets": lambda store: store.observe_counts(HISTOGRAM, [1], 1.0),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_misuse_is_our_own_fault_and_fails_at_once(store: MetricStore, misuse: object) -> None:
    assert callable(misuse)
    with pytest.raises(AssertionError):
        misuse(store)


def test_a_metric_of_the_other_plane_is_refused(store: MetricStore) -> None:
    undeclared: Metric = metrics.QUEUE_RETRIES
    with pytest.raises(KeyError, match=undeclared.name):
        store.inc(undeclared)


def test_no_update_is_lost_between_threads(store: MetricStore) -> None:
    def work() -> None:
        for _ in range(2000):
            store.inc(COUNTER)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    samples(store)
    for thread in threads:
        thread.join()
    assert samples(store)[(COUNTER.name, ())] == 8000
