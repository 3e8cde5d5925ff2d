"""Arrow columns become the job's declared columns, or the schema is refused with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rap_contract.source import EventTime
from rap_contract.types import ValueType
from rap_trainer.batch import Column, RawBatch
from rap_trainer.stream.dead_letters import BadReason
from rap_trainer.stream.decode import Declared, Decoded, Decoder
from rap_trainer.stream.rows import Span, batch_of
from rap_trainer.stream.source import SchemaMismatch

MAX = 2**63 - 1


def decode(
    batch: pa.RecordBatch, types: dict[str, str], *, label: str | None = None, event_time: EventTime | None = None
) -> Decoded:
    declared = Declared(
        columns={name: ValueType.parse(text) for name, text in types.items()},
        label=label,
        event_time=event_time or EventTime(),
        hex_columns=frozenset({"hex"}),
    )
    decoder = Decoder(declared, batch.schema, "events/part-3.parquet")
    return decoder.decode(batch, row_ids=np.arange(batch.num_rows), event_time_s=1.5)


def raw_batch(decoded: Decoded) -> RawBatch:
    return batch_of([Span(decoded.rows, 0, decoded.rows.num_rows)], decoded.rows.num_rows)


def column(array: pa.Array, declared: str) -> Column:
    decoded = decode(pa.record_batch({"x": array}), {"x": declared})
    assert decoded.bad == ()
    assert decoded.kept_rows is None
    return raw_batch(decoded).columns["x"]


def as_lists(column: Column) -> list[Any]:
    """The column as Python values, nulls as None."""
    nulls = [False] * len(column.values_N) if column.nulls_N is None else column.nulls_N.tolist()
    values = [None if null else value for value, null in zip(column.values_N.tolist(), nulls, strict=True)]
    if column.lengths_B is None:
        return values
    rows, at = [], 0
    for length in column.lengths_B.tolist():
        rows.append(values[at : at + length])
        at += length
    assert at == len(values)
    return rows


SCALARS = [
    (pa.array([1, None, 3], pa.int32()), "int32", [1, None, 3]),
    (pa.array([1, -2, 3], pa.int32()), "int64", [1, -2, 3]),
    (pa.array([1, None, 3], pa.int32()), "float32", [1.0, None, 3.0]),
    (pa.array([1, None], pa.int64()), "float32", [1.0, None]),
    (pa.array([250, 1], pa.uint8()), "int32", [250, 1]),
    (pa.array([2**32 - 1, None], pa.uint32()), "int64", [2**32 - 1, None]),
    (pa.array([MAX, None, 0], pa.uint64()), "int64", [MAX, None, 0]),
    (pa.array([True, None, False]), "int32", [1, None, 0]),
    (pa.array([0.5, None], pa.float64()), "float32", [0.5, None]),
    (pa.array([0.5, 2.0], pa.float16()), "float32", [0.5, 2.0]),
    (pa.array([0.5, float("inf")], pa.float32()), "float64", [0.5, float("inf")]),
    (pa.nulls(2), "int64", [None, None]),
    (pa.array([7, None, 7, 9], pa.int64()).dictionary_encode(), "int64", [7, None, 7, 9]),
    (pa.array([7, 7, 9], pa.int32()).slice(1), "int32", [7, 9]),
    (pa.array([1, None, 3, None, 5] * 5, pa.int32()).slice(3, 20), "int64", ([1, None, 3, None, 5] * 5)[3:23]),
    (pa.array([], pa.int32()), "float32", []),
]


@pytest.mark.parametrize(("array", "declared", "expected"), SCALARS, ids=lambda value: str(getattr(value, "type", "")))
def test_a_scalar_column_is_read_as_declared(array: pa.Array, declared: str, expected: list[Any]) -> None:
    assert as_lists(column(array, declared)) == expected


LISTS = [
    (pa.array([[1, 2], [], None, [3, None]], pa.list_(pa.int64())), [[1, 2], [], [None], [3, None]]),
    (pa.array([[1, 2], [], None, [3, None]], pa.large_list(pa.int32())), [[1, 2], [], [None], [3, None]]),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)), [[1, 2], [None], [3, None]]),
    (pa.array([[1, 2], None, []], pa.list_view(pa.int32())), [[1, 2], [None], []]),
    (pa.array([[1, 2], [3], [], [4]], pa.list_(pa.int64())).slice(1, 3), [[3], [], [4]]),
    (pa.array([5, None, 7], pa.int64()), [[5], [None], [7]]),
    (pa.array([5, None, 7], pa.int32()).dictionary_encode(), [[5], [None], [7]]),
    (
        pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pa.array([5, 6, 5]).dictionary_encode()),
        [[5, 6], [5]],
    ),
    (pa.array([], pa.list_(pa.int64())), []),
    (pa.array([None, None], pa.list_(pa.int64())), [[None], [None]]),
    (
        # a null row may hide values; they are not the row's
        pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([8, 8, 9]), mask=pa.array([True, False])),
        [[None], [9]],
    ),
]


@pytest.mark.parametrize(("array", "expected"), LISTS, ids=lambda value: str(getattr(value, "type", "")))
def test_a_list_column_is_read_as_lists(array: pa.Array, expected: list[Any]) -> None:
    assert as_lists(column(array, "list<int64>")) == expected


def test_lists_of_the_declared_type_without_nulls_are_not_copied() -> None:
    array = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    assert column(array, "list<int64>").values_N.data_ptr() == array.values.buffers()[1].address


def test_the_value_under_a_null_is_zero_whatever_the_file_holds_there() -> None:
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 99, 3], np.int32))]
    array = pa.Array.from_buffers(pa.int32(), 3, buffers)
    assert column(array, "int32").values_N.tolist() == [1, 0, 3]


def test_columns_go_by_name_and_new_ones_are_ignored() -> None:
    batch = pa.record_batch({"new": ["a", "b"], "y": pa.array([1, 2], pa.int64()), "x": pa.array([3, 4], pa.int64())})
    columns = decode(batch, {"x": "int64", "y": "int64"}).rows.columns
    assert list(columns) == ["x", "y"]
    assert columns["x"].values.tolist() == [3, 4]


MISMATCHES = [
    (pa.array([[1]], pa.list_(pa.int32())), "int32", "a single value is due"),
    (pa.array([1.5]), "int32", "never takes floats"),
    (pa.array([1], pa.int64()), "int32", "values could be lost"),
    (pa.array([1], pa.uint64()), "int32", "values could be lost"),
    (pa.array([1], pa.uint32()), "int32", "values could be lost"),
    (pa.array(["a"]), "int64", "hexColumns"),
    (pa.array([["a"]]), "list<int64>", "hexColumns"),
    (pa.array([[[1]]], pa.list_(pa.list_(pa.int64()))), "list<int64>", "only integers, floats and lists"),
    (pa.array([1], pa.timestamp("s")), "int64", "only integers, floats and lists"),
]


@pytest.mark.parametrize(("array", "declared", "hint"), MISMATCHES, ids=lambda value: str(getattr(value, "type", "")))
def test_a_retyped_column_is_refused_with_place_both_types_and_a_hint(
    array: pa.Array, declared: str, hint: str
) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        column(array, declared)
    message = str(refused.value)
    assert "events/part-3.parquet" in message
    assert f"column x is {array.type} but the job declares {declared}" in message
    assert hint in message


def test_all_missing_columns_are_named_at_once_with_those_that_are_there() -> None:
    with pytest.raises(SchemaMismatch) as refused:
        decode(pa.record_batch({"a": [1], "b": [2]}), {"x": "int32", "y": "list<int64>"})
    message = str(refused.value)
    assert "column x (int32) is missing" in message
    assert "column y (list<int64>) is missing" in message
    assert "there are a, b" in message


def test_a_column_that_is_there_twice_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(SchemaMismatch, match="2 times"):
        decode(batch, {"x": "int64"})


def test_rows_with_a_wrong_label_are_put_aside_and_the_others_survive() -> None:
    batch = pa.record_batch(
        {"label": pa.array([0, 2, None, 1, -1], pa.int32()), "x": pa.array([10, 11, 12, 13, 14], pa.int64())}
    )
    decoded = decode(batch, {"label": "int32", "x": "int64"}, label="label")
    assert decoded.rows.columns["x"].values.tolist() == [10, 13]
    assert decoded.rows.row_ids_R.tolist() == [0, 3]
    assert decoded.kept_rows is not None
    assert decoded.kept_rows.tolist() == [0, 3]
    assert [(bad.row, bad.reason) for bad in decoded.bad] == [
        (1, BadReason.LABEL),
        (2, BadReason.LABEL_MISSING),
        (4, BadReason.LABEL),
    ]
    assert decoded.bad[0].payload == b'{"label": 2, "x": 11}'
    assert decoded.bad[0].detail == "column label is 2"


@pytest.mark.parametrize("type_", [pa.float32(), pa.int64(), pa.bool_()], ids=str)
def test_a_label_may_come_as_any_number_that_is_0_or_1(type_: pa.DataType) -> None:
    decoded = decode(pa.record_batch({"label": pa.array([0, 1]).cast(type_)}), {"label": "float32"}, label="label")
    assert decoded.bad == ()
    assert decoded.rows.columns["label"].values.tolist() == [0.0, 1.0]


def test_a_label_that_is_not_a_number_is_bad() -> None:
    decoded = decode(pa.record_batch({"label": [0.0, float("nan"), 0.5]}), {"label": "float32"}, label="label")
    assert [bad.row for bad in decoded.bad] == [1, 2]


def test_labels_that_are_all_missing_are_bad() -> None:
    decoded = decode(pa.record_batch({"label": pa.nulls(2)}), {"label": "int32"}, label="label")
    assert [bad.reason for bad in decoded.bad] == [BadReason.LABEL_MISSING] * 2
    assert decoded.rows.num_rows == 0


def test_ids_past_2_to_63_make_their_rows_bad() -> None:
    batch = pa.record_batch(
        {
            "scalar": pa.array([1, 2**63, None, 4, 5], pa.uint64()),
            "list": pa.array([[1], [2], None, [3, 2**64 - 1], []], pa.list_(pa.uint64())),
        }
    )
    decoded = decode(batch, {"scalar": "list<int64>", "list": "list<int64>"})
    assert [(bad.row, bad.reason) for bad in decoded.bad] == [(1, BadReason.OUT_OF_RANGE), (3, BadReason.OUT_OF_RANGE)]
    assert "column scalar is 9223372036854775808" in decoded.bad[0].detail
    columns = raw_batch(decoded).columns
    assert as_lists(columns["scalar"]) == [[1], [None], [5]]
    assert as_lists(columns["list"]) == [[1], [None], []]


def test_a_number_too_large_for_float32_is_bad_and_infinity_is_kept() -> None:
    decoded = decode(pa.record_batch({"x": [1.0, 1e300, float("-inf"), None]}), {"x": "float32"})
    assert [(bad.row, bad.reason) for bad in decoded.bad] == [(1, BadReason.OUT_OF_RANGE)]
    assert as_lists(raw_batch(decoded).columns["x"]) == [1.0, float("-inf"), None]


def test_hexadecimal_text_becomes_ids_and_what_is_not_makes_its_row_bad() -> None:
    text = ["05db9164", None, "FF", "", "xyz", "7fffffffffffffff", "8000000000000000", "1" * 17]
    decoded = decode(pa.record_batch({"hex": text}), {"hex": "list<int64>"})
    reasons = {bad.row: bad.reason for bad in decoded.bad}
    assert reasons == {
        3: BadReason.UNPARSEABLE,
        4: BadReason.UNPARSEABLE,
        6: BadReason.OUT_OF_RANGE,
        7: BadReason.UNPARSEABLE,
    }
    assert as_lists(raw_batch(decoded).columns["hex"]) == [[0x05DB9164], [None], [255], [MAX]]


def test_a_hexadecimal_column_declared_int32_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="declare int64"):
        decode(pa.record_batch({"hex": ["ff"]}), {"hex": "int32"})


@pytest.mark.parametrize(
    ("times", "unit", "expected"),
    [
        (pa.array([10, None], pa.int64()), "s", [10.0, None]),
        (pa.array([10_500, None], pa.int64()), "ms", [10.5, None]),
        (pa.array([10.25, 11.0]), "s", [10.25, 11.0]),
        (pa.array([10_000_000, None], pa.timestamp("us")), "s", [10.0, None]),
        (pa.array([10_000_000_000, None], pa.timestamp("ns", "UTC")), "s", [10.0, None]),
        (pa.nulls(2), "s", [None, None]),
    ],
    ids=["seconds", "milliseconds", "float", "timestamp", "zoned timestamp", "all null"],
)
def test_event_times_are_seconds_whatever_their_unit(times: pa.Array, unit: str, expected: list[float | None]) -> None:
    event_time = EventTime.model_validate({"column": "ts", "unit": unit})
    decoded = decode(pa.record_batch({"x": pa.array([1, 2]), "ts": times}), {"x": "int64"}, event_time=event_time)
    seconds = decoded.rows.event_times_s_R
    assert [None if np.isnan(value) else value for value in seconds.tolist()] == expected


def test_without_an_event_time_column_the_time_of_the_message_counts() -> None:
    assert decode(pa.record_batch({"x": [1, 2]}), {"x": "int64"}).rows.event_times_s_R.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("batch", [{"x": [1]}, {"x": [1], "ts": ["noon"]}, {"x": [1], "ts": [[1]]}], ids=str)
def test_an_event_time_column_that_is_missing_or_no_time_is_refused(batch: dict[str, list[Any]]) -> None:
    with pytest.raises(SchemaMismatch, match="event time column ts"):
        decode(pa.record_batch(batch), {"x": "int64"}, event_time=EventTime(column="ts"))
