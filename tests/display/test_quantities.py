"""Numbers as a person reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.display import quantities as q


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (9999, "9,999"),
        (9999.6, "10.0k"),
        (41_234, "41.2k"),
        (999_499, "999k"),
        (999_600, "1.00M"),
        (5_050_000, "5.05M"),
        (1.2e9, "1.20G"),
        (3e12, "3.00T"),
        (-41_234, "-41.2k"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert q.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.003, "3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
        (-2, "-2.0 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert q.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 ms"), (0.42, "0.42 ms"), (48.2, "48.2 ms"), (1204, "1,204 ms")])
def test_milliseconds(value: float, text: str) -> None:
    assert q.milliseconds(value) == text


@pytest.mark.parametrize("form", [q.count, q.seconds, q.milliseconds, q.ratio, q.percent])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash(form: object, value: float | None) -> None:
    assert callable(form)
    assert form(value) == q.MISSING


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1e15))
def test_a_count_is_short_and_near(value: float) -> None:
    text = q.count(value)
    assert len(text) <= 6
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1.0)
    shown = float(text.rstrip("kMGT").replace(",", "")) * scale
    assert shown == pytest.approx(value, rel=0.006, abs=0.5)


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), max_size=30))
def test_a_sparkline_has_one_block_per_number(values: list[float]) -> None:
    line = q.spark(values)
    assert len(line) == len(values)
    if values and min(values) < max(values):
        assert line[values.index(min(values))] == q.SPARKS[0]
        assert line[values.index(max(values))] == q.SPARKS[-1]
