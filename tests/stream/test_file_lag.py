"""How far behind a directory training is: rows estimated by size, age by the oldest file, rates by two looks."""

from __future__ import annotations

from math import inf

from rap_contract import metrics
from rap_contract.metrics import TRAINER, Metric
from rap_trainer.batch import Position
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.catalogue import Kind, Record
from rap_trainer.stream.discovery import FINISHED
from rap_trainer.stream.file_lag import FileLagMeter, file_lag
from rap_trainer.stream.source import Lag


def files(*sizes_bytes: int) -> dict[str, Record]:
    """Files modified ten seconds apart, from second 100 on."""
    return {
        f"part-{i}": Record(kind=Kind.FILE, name=f"part-{i}", size_bytes=size, modified_s=100.0 + 10 * i)
        for i, size in enumerate(sizes_bytes)
    }


def test_before_a_file_is_trained_only_decoded_rows_are_known() -> None:
    lag = file_lag(files(1000, 1000), {}, trained_rows=0, decoded_rows=7, now_s=150.0)
    assert lag == Lag(records=7, seconds=50.0)


def test_rows_of_files_to_come_follow_from_the_size_of_those_trained() -> None:
    positions = {"part-0": Position(FINISHED), "part-1": Position(30)}
    lag = file_lag(files(1000, 1000, 500), positions, trained_rows=100 + 30, decoded_rows=10, now_s=150.0)
    assert lag == Lag(records=150 - 30, seconds=40.0)


def test_a_directory_that_is_trained_to_its_end_has_no_lag() -> None:
    positions = {"part-0": Position(FINISHED)}
    assert file_lag(files(1000), positions, trained_rows=100, decoded_rows=0, now_s=150.0) == Lag(
        records=0, seconds=0.0
    )


def value(store: MetricStore, metric: Metric) -> float:
    return next(family.samples[0].value for family in store.collect() if family.name == metric.name)


def test_rates_follow_from_two_looks() -> None:
    store, now_s = MetricStore(TRAINER), [0.0]
    meter = FileLagMeter("events", clock=lambda: now_s[0])
    meter.report(store, Lag(records=1000, seconds=3.0), trained_rows=0)
    now_s[0] = 5.0
    meter.report(store, Lag(records=500, seconds=2.0), trained_rows=750)
    assert value(store, metrics.CONSUMPTION_RATE) == 150.0
    assert value(store, metrics.ARRIVAL_RATE) == 50.0
    assert value(store, metrics.CATCH_UP_SECONDS) == 5.0
    assert value(store, metrics.SOURCE_IDLE_SECONDS) == 0.0
    assert value(store, metrics.LAG_SECONDS) == 2.0
    now_s[0] = 12.0
    meter.report(store, Lag(records=900, seconds=9.0), trained_rows=750)
    assert value(store, metrics.SOURCE_IDLE_SECONDS) == 7.0
    assert value(store, metrics.CATCH_UP_SECONDS) == 900 / (100 / 12.0)
    now_s[0] = 16.0
    meter.report(store, Lag(records=1100, seconds=9.0), trained_rows=750)
    assert value(store, metrics.CATCH_UP_SECONDS) == inf
