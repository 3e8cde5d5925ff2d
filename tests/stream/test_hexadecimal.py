"""Hexadecimal columns parse as Python's int(text, 16) does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.stream.hexadecimal import parse_hex

TEXT = st.one_of(st.none(), st.text("0123456789abcdefABCDEF", max_size=18), st.text(max_size=5))


def obvious(text: str | None) -> tuple[int, bool]:
    if text is None:
        return 0, False
    if not 1 <= len(text.encode()) <= 16 or any(c not in "0123456789abcdefABCDEF" for c in text):
        return 0, True
    return int(text, 16), False


@given(rows=st.lists(TEXT, max_size=40), cut=st.integers(0, 5), type_=st.sampled_from([pa.string(), pa.large_binary()]))
def test_values_and_bad_rows_equal_the_obvious_parser(rows: list[str | None], cut: int, type_: pa.DataType) -> None:
    values, bad = parse_hex(pa.array(rows, pa.string()).cast(type_).slice(cut))
    assert list(zip(values.tolist(), bad.tolist(), strict=True)) == [obvious(text) for text in rows[cut:]]


@pytest.mark.parametrize("rows", [[], [None], [""], [None, "", None]], ids=str)
def test_columns_without_a_digit_parse(rows: list[str | None]) -> None:
    values, bad = parse_hex(pa.array(rows, pa.string()))
    assert list(zip(values.tolist(), bad.tolist(), strict=True)) == [obvious(text) for text in rows]
