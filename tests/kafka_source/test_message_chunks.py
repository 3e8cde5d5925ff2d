"""Every row of a chunk knows its message, however messages, bad rows and empty ones fall."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import inf, nan

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_source.topics import COLUMNS, table
from rap_contract import metrics
from rap_contract.types import ValueType
from rap_trainer.batch import Position
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.decode import Declared
from rap_trainer.stream.kafka.chunks import FrameDecoder, MessageChunk, fingerprint, gap_chunk
from rap_trainer.stream.kafka.frames import Frame
from rap_trainer.stream.kafka.lag import (
    LagMeter,
    MessageTimes,
    PartitionLag,
    Watermarks,
    partition_lag,
    total,
)
from rap_trainer.stream.source import catch_up_s

DECLARED = Declared(columns={name: ValueType.parse(text) for name, text in COLUMNS.items()}, label="label")


def chunk_of(num_rows: list[int], *, bad: Collection[int] = (), first_row: int = 0) -> MessageChunk:
    """Messages at offsets 10, 12, ... of so many rows each; rows of `bad` have a wrong label."""
    rows = range(sum(num_rows))
    frame = Frame(
        partition=3,
        offsets_M=np.arange(10, 10 + 2 * len(num_rows), 2),
        times_s_M=np.array([100.0 + message for message in range(len(num_rows))], np.float64),
        num_rows_M=np.array(num_rows),
        first_row=first_row,
        row_numbers=None,
        bad=(),
        batch=None,
        num_bytes=0,
        num_empty=0,
        fetched_s=0.0,
    )
    batch = table(rows, bad=sorted(bad)).combine_chunks().to_batches()[0] if sum(num_rows) else None
    return FrameDecoder(DECLARED, "t").decode(frame, batch, unit="t/3", unit_base=0)


@settings(deadline=None, max_examples=50)  # a busy machine is no fault
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 5), st.data())
def test_positions_name_the_message_and_the_row_in_it(sizes: list[int], first_row: int, data: st.DataObject) -> None:
    total_rows = sum(sizes)
    bad = data.draw(st.sets(st.integers(0, max(0, total_rows - 1)))) if total_rows else set()
    chunk = chunk_of(sizes, bad=bad, first_row=first_row)
    expected = [
        Position(10 + 2 * message, row + (first_row if message == 0 else 0))
        for message, size in enumerate(sizes)
        for row in range(size)
    ]
    assert [chunk.position(row) for row in range(total_rows)] == expected
    assert chunk.position(total_rows) == Position(10 + 2 * len(sizes) - 1)
    assert chunk.num_good == total_rows - len(bad)
    assert {row.row for row in chunk.bad} == bad
    good = [row for row in range(total_rows) if row not in bad]
    assert [chunk.row_after(count) for count in range(len(good))] == good
    if chunk.rows is not None:
        assert chunk.rows.columns["row"].values.tolist() == good
        times = [100.0 + message for message, size in enumerate(sizes) for _ in range(size)]
        assert np.asarray(chunk.rows.event_times_s_R).tolist() == [times[row] for row in good]
        assert len(set(np.asarray(chunk.rows.row_ids_R).tolist())) == len(good)


@settings(deadline=None, max_examples=50)  # a busy machine is no fault
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_messages_are_counted_once_however_the_chunk_is_cut(sizes: list[int], data: st.DataObject) -> None:
    chunk = chunk_of(sizes)
    cuts = sorted(data.draw(st.sets(st.integers(1, sum(sizes))))) if sum(sizes) else []
    counted, begin = 0, 0
    for end in [*cuts, sum(sizes)]:
        counted += chunk.messages_before(end) - (chunk.messages_before(begin) if begin else 0)
        begin = end
    assert counted == len(sizes)


def test_a_gap_moves_the_position_and_counts_no_message() -> None:
    gap = gap_chunk("t/3", 3, 50)
    assert gap.position(gap.row_after(0)) == Position(50)
    assert gap.messages_before(0) == 0
    assert gap.num_good == 0


def test_messages_of_another_schema_are_bad_as_a_whole() -> None:
    frame = Frame(
        partition=0,
        offsets_M=np.array([5, 6]),
        times_s_M=np.array([nan, nan]),
        num_rows_M=np.array([3, 2]),
        first_row=0,
        row_numbers=None,
        bad=(),
        batch=None,
        num_bytes=0,
        num_empty=0,
        fetched_s=0.0,
    )
    batch = table(range(5)).drop_columns(["dense"]).combine_chunks().to_batches()[0]
    chunk = FrameDecoder(DECLARED, "t").decode(frame, batch, unit="t/0", unit_base=0)
    assert chunk.rows is None
    assert [(chunk.position(bad.row), chunk.num_rows_of(bad)) for bad in chunk.bad] == [
        (Position(5), 3),
        (Position(6), 2),
    ]


def test_a_fingerprint_tells_types_and_names_and_not_their_order() -> None:
    schema = table(range(1)).schema
    assert fingerprint(schema) == fingerprint(pa.schema(list(schema)[::-1]))
    assert fingerprint(schema) != fingerprint(schema.remove(0))
    assert fingerprint(schema) != fingerprint(schema.set(0, pa.field("label", pa.int64())))


def test_lag_counts_unread_and_untrained_messages() -> None:
    lag = partition_lag(standing=(90, 100), read=40, consumed=35, oldest_s=7.0, now_s=10.0)
    assert (lag.records, lag.seconds) == (15, 3.0)
    none = partition_lag(standing=(100, 100), read=40, consumed=40, oldest_s=7.0, now_s=10.0)
    assert (none.records, none.seconds) == (0, 0.0)
    unknown = partition_lag(standing=(90, 100), read=0, consumed=0, oldest_s=nan, now_s=10.0)
    assert unknown.seconds is None
    assert total({0: lag, 1: none, 2: unknown}).records == 25
    assert total({0: lag, 1: unknown}).seconds == 3.0


def test_rates_and_catch_up_follow_from_two_looks() -> None:
    store = MetricStore(metrics.TRAINER)
    meter = LagMeter("t")
    for now_s, end, consumed, records in ((0.0, 100, 0, 100), (2.0, 120, 80, 40)):
        lags = {0: PartitionLag(records=records, seconds=1.0, end=end, consumed=consumed)}
        meter.report(store, lags, now_s=now_s)
    values = {sample.name: sample.value for family in store.collect() for sample in family.samples}
    assert values[metrics.ARRIVAL_RATE.name] == 10
    assert values[metrics.CONSUMPTION_RATE.name] == 40
    assert values[metrics.PENDING_RECORDS.name] == 40
    assert values[metrics.CATCH_UP_SECONDS.name] == pytest.approx(40 / 30)
    assert catch_up_s(40, growth=5.0) == inf
    assert catch_up_s(40, growth=0.0) == inf
    assert catch_up_s(0, growth=5.0) == 0.0


def test_gaps_of_transactions_are_neither_arrival_nor_consumption() -> None:
    store, meter = MetricStore(metrics.TRAINER), LagMeter("t")
    for now_s, end, consumed, records in ((0.0, 100, 0, 50), (2.0, 200, 50, 50)):  # half of the offsets hold records
        meter.report(store, {0: PartitionLag(records=records, seconds=1.0, end=end, consumed=consumed)}, now_s=now_s)
    values = {sample.name: sample.value for family in store.collect() for sample in family.samples}
    assert values[metrics.ARRIVAL_RATE.name] == values[metrics.CONSUMPTION_RATE.name] == 25
    assert values[metrics.CATCH_UP_SECONDS.name] == inf


def test_the_oldest_message_that_is_not_trained_is_found_over_gaps_and_frames() -> None:
    times = MessageTimes()
    assert times.oldest_s(0, 0) is None
    times.add(0, np.array([5, 6, 9]), np.array([1.0, 2.0, 3.0]))
    times.add(0, np.array([12, 13]), np.array([4.0, 5.0]))
    times.add(1, np.array([0]), np.array([9.0]))
    assert [times.oldest_s(0, offset) for offset in (0, 6, 7, 10, 13)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert times.oldest_s(0, 14) is None
    assert times.oldest_s(1, 0) == 9.0


def test_the_watermark_is_that_of_the_slowest_partition_with_rows_left_and_ignores_wrong_clocks() -> None:
    marks = Watermarks()
    assert marks.lag_s({0}, now_s=100.0) is None
    marks.trained(0, np.array([90.0, nan, 80.0]), now_s=100.0)
    marks.trained(1, np.array([50.0, 1e9, np.inf]), now_s=100.0)
    marks.trained(2, np.array([nan]), now_s=100.0)
    assert marks.lag_s({0, 1, 2}, now_s=100.0) == 50.0
    assert marks.lag_s({0}, now_s=100.0) == 10.0
    assert marks.lag_s(set(), now_s=100.0) == 10.0
    marks.trained(0, np.array([130.0]), now_s=100.0)
    assert marks.lag_s({0}, now_s=100.0) == 0.0, "a clock that is a little ahead"


@settings(deadline=None, max_examples=50)
@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 30))
def test_the_good_rows_of_a_range_are_those_kept_in_it(gone: set[int], first: int, last: int) -> None:
    first, last = min(first, last), max(first, last)
    kept = np.array(sorted(set(range(31)) - gone), np.int64)
    whole = replace(gap_chunk("t/0", 0, 1), num_rows=31, kept_rows=kept)
    begin, end = whole.good_rows(first, last)
    assert kept[begin:end].tolist() == [row for row in range(first, last) if row not in gone]
    assert replace(whole, kept_rows=None).good_rows(first, last) == (first, last)
