"""Messages to record batches, without a broker: good rows survive beside whatever else comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka_source.topics import arrow, table
from rap_trainer.stream.dead_letters import BadReason
from rap_trainer.stream.kafka.arrow_messages import ArrowMessages
from rap_trainer.stream.kafka.messages import Parsed, Parser, without_first_rows
from rap_trainer.stream.kafka.settings import Text
from rap_trainer.stream.kafka.text_messages import csv_messages, json_messages

TYPES = pa.schema([("row", pa.int64()), ("dense", pa.float32())])
REGISTRY = b"\x00\x00\x00\x00\x2a" + b"payload"


def rows(parsed: Sequence[Parsed]) -> list[Any]:
    return [row for each in parsed if each.batch is not None for row in each.batch.column("row").to_pylist()]


def numbers(parsed: Parsed) -> list[int]:
    assert parsed.batch is not None
    return list(range(parsed.batch.num_rows)) if parsed.row_numbers is None else parsed.row_numbers.tolist()


def parse(parser: Parser, values: Sequence[bytes | None]) -> list[Parsed]:
    parsed = list(parser.parse(values))
    assert sum(len(each.num_rows) for each in parsed) == len(values), "every message is accounted for"
    for each in parsed:
        kept = [] if each.batch is None else numbers(each)
        whole = [bad.row for bad in each.bad]
        assert sorted([*kept, *whole]) == list(range(sum(each.num_rows))), "every row is good or bad, once"
    return parsed


@pytest.mark.parametrize(("compression", "as_file"), [(None, False), ("zstd", False), ("lz4", False), (None, True)])
def test_arrow_messages_of_one_schema_become_one_batch(compression: str | None, as_file: bool) -> None:
    values = [arrow(table(range(i, i + 3)), compression=compression, as_file=as_file) for i in (0, 3)]
    (parsed,) = parse(ArrowMessages(["row", "dense"]), values)
    assert rows([parsed]) == list(range(6))
    assert parsed.num_rows == (3, 3)
    assert parsed.batch is not None
    assert parsed.batch.schema.names == ["row", "dense"]


def test_dictionaries_of_different_messages_are_unified() -> None:
    words = [["b", "a"], ["c", "a", "a"]]
    values = [arrow(pa.table({"row": pa.array(some).dictionary_encode()})) for some in words]
    (parsed,) = parse(ArrowMessages(["row"]), values)
    assert rows([parsed]) == ["b", "a", "c", "a", "a"]


def test_arrow_rows_survive_beside_damaged_messages() -> None:
    whole = arrow(table(range(40)))
    values = [arrow(table([0, 1])), whole[: len(whole) // 2], None, b"", REGISTRY, b"\xff" * 100, arrow(table([2]))]
    parsed = parse(ArrowMessages(["row"]), values)
    assert rows(parsed) == [0, 1, 2]
    (one,) = parsed
    assert one.num_rows == (2, 1, 0, 0, 1, 1, 1)
    assert [bad.row for bad in one.bad] == [2, 3, 4]
    assert {bad.reason for bad in one.bad} == {BadReason.MESSAGE}
    assert "schema 42), which is not supported; hint: produce Arrow, JSON lines or CSV" in one.bad[1].detail
    assert one.bad[0].payload == values[1]


def test_every_truncation_and_many_flipped_bytes_of_an_arrow_message_are_survived() -> None:
    message = arrow(table(range(5)))
    random = np.random.default_rng(0)
    damaged = [message[:size] for size in range(1, len(message), 7)]
    for _ in range(300):
        changed = bytearray(message)
        for place in random.integers(0, len(message), 3):
            changed[place] = random.integers(0, 256)
        damaged.append(bytes(changed))
    for value in damaged:
        parse(ArrowMessages(["row", "dense", "ids"]), [value, message])


def test_another_schema_begins_another_batch_and_empty_messages_do_not() -> None:
    other = pa.table({"row": pa.array([9], pa.int32())})
    values = [None, arrow(table([0])), b"", arrow(other), arrow(other), arrow(table([1]))]
    parsed = parse(ArrowMessages(["row"]), values)
    assert [each.num_rows for each in parsed] == [(0, 1, 0), (1, 1), (1,)]
    assert rows(parsed) == [0, 9, 9, 1]


def test_json_lines_survive_beside_bad_ones() -> None:
    deep = b'{"row": ' + b"[" * 100_000
    values = [
        b'{"row": 0, "dense": 0.5, "more": {"x": [1]}}\n{"row": 1}\n',
        b'{"row": "two"}\n{"row": 3}\n[]\n{"row": 1.5}\n{"row": 4}',
        b"\x93\x00\x01",
        REGISTRY,
        deep,
        b'{"row": 5}{"row": 6}\n',
        b'{"row": 99999999999999999999}\r\n{"row": 7}\r\n',
    ]
    (parsed,) = parse(json_messages(TYPES), values)
    assert rows([parsed]) == [0, 1, 3, 4, 7]
    assert parsed.num_rows == (2, 5, 1, 1, 1, 1, 2)
    assert numbers(parsed) == [0, 1, 3, 6, 12]
    assert [bad.row for bad in parsed.bad] == [2, 4, 5, 7, 8, 9, 10, 11]
    assert parsed.bad[0].payload == b'{"row": "two"}'
    assert [bad.row for bad in parsed.bad if bad.reason is BadReason.MESSAGE] == [7, 8]


def test_many_small_json_messages_are_one_batch() -> None:
    values = [json.dumps({"row": row, "dense": row / 2}).encode() for row in range(1000)]
    (parsed,) = parse(json_messages(TYPES), values)
    assert rows([parsed]) == list(range(1000))
    assert parsed.row_numbers is None


def test_csv_lines_survive_beside_bad_ones() -> None:
    parser = csv_messages(Text(delimiter=",", header=False, names=["row", "dense"]), TYPES)
    values = [b"0,0.5\n1,\n", b"two,1\n3,1,1\n4,2", None, b"\x00\x01", b"5,5\r\n"]
    (parsed,) = parse(parser, values)
    assert rows([parsed]) == [0, 1, 4, 5]
    assert [(bad.row, bad.reason) for bad in parsed.bad] == [
        (2, BadReason.UNPARSEABLE),
        (3, BadReason.FIELDS),
        (5, BadReason.MESSAGE),
    ]


def test_csv_headers_come_with_each_message_and_order_their_fields() -> None:
    parser = csv_messages(Text(delimiter=",", header=True, names=None), TYPES)
    values = [b"row,dense\n0,1\n", b"dense,row,extra\n1,1,x\n", b"row,dense\n", b"row\n2\n", b"dense,row,extra\n1,3,x"]
    parsed = parse(parser, values)
    assert rows(parsed) == [0, 1, 3]
    details = [bad.detail for each in parsed for bad in each.bad]
    assert len(details) == 1
    assert "columns dense are missing" in details[0]


@pytest.mark.parametrize("count", range(8))
def test_rows_that_were_consumed_before_are_left_out_of_the_first_message(count: int) -> None:
    parser = csv_messages(Text(delimiter=",", header=False, names=["row", "dense"]), TYPES)
    whole = parse(parser, [b"0,0\nx,1\n2,2\n3,3\ny,4\n5,5\n"])[0]
    rest = without_first_rows(whole, count)
    assert rest.num_rows == (max(0, 6 - count),)
    assert [row for row in [0, 2, 3, 5] if row >= count] == rows([rest])
    if rest.batch is not None:
        assert [number + count for number in numbers(rest)] == rows([rest])
    assert [bad.row + count for bad in rest.bad] == [row for row in [1, 4] if row >= count]
