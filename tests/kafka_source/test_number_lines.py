"""Lines of one shape give what Arrow's JSON reader gives, or are left to it: never another number."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.stream.kafka.number_lines import NotOfThisShape, NumberLines
from rap_trainer.stream.kafka.text_messages import json_messages

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("long_name_of_a_column_that_takes_three_words", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
    ]
)
NAMES = SCHEMA.names
GOOD = '{"i": 1, "long_name_of_a_column_that_takes_three_words": 2, "f": 3, "x": 0, "d": 4}'


def by_arrow(block: bytes) -> pa.RecordBatch | None:
    """None: not all lines are JSON of this schema."""
    parsing = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    try:
        table = pj.read_json(pa.BufferReader(block), parse_options=parsing)
    except pa.ArrowInvalid:
        return None
    return table.select(NAMES).combine_chunks().to_batches()[0]


def by_position(block: bytes, *, like: str = GOOD) -> pa.RecordBatch | None:
    """None: Arrow has to read it."""
    shape = NumberLines.of(like.encode(), SCHEMA)
    assert shape is not None
    try:
        return shape.batch(block, block.count(b"\n"))
    except NotOfThisShape:
        return None


def same_bits(mine: pa.RecordBatch, theirs: pa.RecordBatch) -> bool:
    """NaN does not occur; -0.0 and 0.0 differ."""
    return all(
        [None if v is None else struct.pack("<d", v) for v in mine[name].to_pylist()]
        == [None if v is None else struct.pack("<d", v) for v in theirs[name].to_pylist()]
        for name in NAMES
    )


WHOLE = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, -1, 9, 10, 99999999, 100000000]))
LONG = st.one_of(WHOLE, st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(
    WHOLE,
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.decimals(-100000, 100000, places=3).map(float),
)
ROW = st.tuples(WHOLE, LONG, FLOATS, FLOATS)


@settings(deadline=None, max_examples=100)
@given(st.lists(ROW, min_size=1, max_size=40), st.sampled_from([", ", ","]))
def test_numbers_are_those_that_arrow_reads(rows: list[tuple[Any, ...]], comma: str) -> None:
    lines = [json.dumps(dict(zip(NAMES, row, strict=True)), separators=(comma, ":")) for row in rows]
    block = "".join(line + "\n" for line in lines).encode()
    expected = by_arrow(block)
    found = by_position(block, like=lines[0])
    if found is not None:
        assert expected is not None
        assert same_bits(found, expected)


def test_common_numbers_are_read_by_position() -> None:
    draw = random.Random(3)
    rows: list[tuple[Any, ...]] = [
        (draw.randrange(-9, 99), draw.getrandbits(63), round(draw.uniform(-5, 5), 6), round(1.7e9 + draw.random(), 6))
        for _ in range(2500)
    ]
    rows[7] = (None, None, None, None)
    block = "".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in rows).encode()
    found = by_position(block, like=block.split(b"\n")[0].decode())
    expected = by_arrow(block)
    assert found is not None
    assert expected is not None
    assert same_bits(found, expected)


@pytest.mark.parametrize(
    "value",
    ["01", "-01", "1.", ".5", "-", "", "+1", "1e5", "1.e5", "-1.E5", "00.5", "-01.5", "-.5", "-1e-3", "1E+2", "1e", "1.5.5", "0x1", "nul", "null ", "-null", "true", '"1"',
     "[1]", "{}", "1 2", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
     "-9223372036854775808", "12345678901234567890", "0.1", "-0", "-0.0", "16777217", "16777217.5", "3.5e38", "1e400",
     "0.30000001192092896", "0.000000000000000000000000001", "1" * 40, "1." + "3" * 40, " 5", "5 ", "5\t", "\u0665"],
)  # fmt: skip
@pytest.mark.parametrize("column", range(len(NAMES)))
def test_whatever_a_value_looks_like_the_answer_is_arrows_or_none(value: str, column: int) -> None:
    values = ["1", "2", "3", "4"]
    values[column] = value
    odd = "{" + ", ".join(f'"{name}": {text}' for name, text in zip(NAMES, values, strict=True)) + "}"
    plain = "{" + ", ".join(f'"{name}": {text}' for name, text in zip(NAMES, "1234", strict=True)) + "}"
    block = "".join(f"{line}\n" for line in [plain] * 60 + [odd] + [plain] * 3).encode()
    found, expected = by_position(block, like=plain), by_arrow(block)
    if found is not None:
        assert expected is not None, "not JSON of these types"
        assert same_bits(found, expected)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 3 * (len(GOOD) + 1) - 1), st.binary(min_size=1, max_size=2), st.booleans())
def test_damage_between_values_never_passes(place: int, damage: bytes, replaces: bool) -> None:
    block = f"{GOOD}\n".encode() * 3
    block = block[:place] + damage + block[place + len(damage) * replaces :]
    found = by_position(block)
    if found is not None:
        expected = by_arrow(block)
        unread = b'"x": '  # a value that nobody wants may be anything
        if expected is None:
            assert any(abs(place - at) < 8 for at in places_of(block, unread))
        else:
            assert same_bits(found, expected)


def places_of(block: bytes, text: bytes) -> list[int]:
    return [at + len(text) for at in range(len(block)) if block.startswith(text, at)]


def test_a_bad_line_costs_itself_and_lines_of_one_shape_are_read_by_position_again_later() -> None:
    good = [
        f'{{"i": {row}, "long_name_of_a_column_that_takes_three_words": {row}, "f": 0.5, "d": null}}'
        for row in range(1200)
    ]
    bad = [*good[:700], "{", *good[700:]]
    parser = json_messages(SCHEMA)
    for number, lines in enumerate([good, bad, *[good] * 20]):
        (parsed,) = parser.parse(
            ["\n".join(lines[begin : begin + 100]).encode() for begin in range(0, len(lines), 100)]
        )
        assert parsed.batch is not None
        assert parsed.batch["i"].to_pylist() == list(range(1200))
        assert parsed.batch["f"].to_pylist() == [0.5] * 1200
        assert parsed.batch["d"].null_count == 1200
        assert [row.row for row in parsed.bad] == ([700] if number == 1 else [])


@pytest.mark.parametrize(
    "line",
    [
        '{"i": "a", "f": 1}',
        '{"f": 1}',
        '{"i": [1]}',
        "{}",
        "",
        "[1]",
        '{"i": 1, "i": 2}',
        '{"i": 1',
        '{"a\\"b": 1}',
        '{"i": 1, "a,b": 2}',
        "not JSON",
    ],
)
def test_lines_of_other_things_have_no_shape(line: str) -> None:
    assert NumberLines.of(line.encode(), pa.schema([("i", pa.int64())])) is None


def test_columns_of_other_types_have_no_shape() -> None:
    assert NumberLines.of(b'{"i": 1}', pa.schema([("i", pa.string())])) is None
    assert NumberLines.of(b'{"i": 1}', pa.schema([("i", pa.list_(pa.int64()))])) is None


def test_lines_in_another_order_or_spacing_are_arrows() -> None:
    other = '{"f": 3, "i": 1, "long_name_of_a_column_that_takes_three_words": 2, "x": 0, "d": 4}'
    for line in (other, GOOD.replace(", ", ",", 1), GOOD.replace('"f"', '"g"'), GOOD + " ", GOOD + "\r"):
        assert by_position(f"{GOOD}\n{line}\n{GOOD}\n".encode()) is None
    windows = by_position(f"{GOOD}\r\n".encode() * 3, like=GOOD + "\r")
    assert windows is not None
    assert windows["d"].to_pylist() == [4, 4, 4]


def test_a_point_before_an_e_in_a_key_is_no_fault_of_a_number() -> None:
    schema = pa.schema([("user.email", pa.float32())])
    shape = NumberLines.of(b'{"user.email": 0.5}', schema)
    assert shape is not None
    assert shape.batch(b'{"user.email": 0.5}\n{"user.email": -2}\n', 2)["user.email"].to_pylist() == [0.5, -2.0]
    with pytest.raises(NotOfThisShape):
        shape.batch(b'{"user.email": 0.5}\n{"user.email": 2.e1}\n', 2)
