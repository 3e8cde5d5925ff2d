"""Freshness: from event times to quantiles and Prometheus buckets."""

from __future__ import annotations

import math
from bisect import bisect_left

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_contract.metrics import FRESHNESS_S
from rap_trainer.evaluation import Freshness
from rap_trainer.evaluation.freshness import SUBDIVISIONS

NOW_S = 1_780_000_000.0
STEP = 2 ** (1 / SUBDIVISIONS)
AGES = st.lists(st.floats(0.0, 4e5), min_size=1, max_size=50)


def times(*ages_s: float) -> torch.Tensor:
    return NOW_S - torch.tensor(ages_s, dtype=torch.float64)


def fresh(*ages_s: float) -> Freshness:
    freshness = Freshness(torch.device("cpu"))
    freshness.update(times(*ages_s), NOW_S)
    return freshness


@settings(deadline=None, max_examples=50)
@given(ages=AGES)
def test_a_quantile_is_at_most_one_bin_above_the_exact_one(ages: list[float]) -> None:
    reading = fresh(*ages).take()
    for share, quantile in ((0.5, reading.p50_s), (0.99, reading.p99_s)):
        exact = sorted(ages)[math.ceil(share * len(ages)) - 1]
        assert quantile is not None
        slack = 1e-6  # float32 seconds, and doubles near 2e9 s resolve 0.2 us
        assert max(exact, FRESHNESS_S[0]) * (1 - slack) - slack <= quantile
        assert quantile <= max(exact * STEP, FRESHNESS_S[0]) * (1 + slack) + slack


@settings(deadline=None, max_examples=50)
@given(ages=st.lists(st.integers(0, 2**19), min_size=1, max_size=50))
def test_rows_fall_into_the_buckets_prometheus_expects(ages: list[int]) -> None:
    reading = fresh(*map(float, ages)).take()
    expected = [0] * (len(FRESHNESS_S) + 1)
    for age in ages:
        expected[bisect_left(FRESHNESS_S, float(age))] += 1
    assert list(reading.bucket_counts) == expected
    assert reading.sum_s == pytest.approx(sum(ages))


def test_a_reading_begins_anew() -> None:
    freshness = fresh(1.0, 2.0)
    freshness.take()
    again = freshness.take()
    assert (again.p50_s, again.p99_s, sum(again.bucket_counts), again.sum_s) == (None, None, 0, 0.0)


def test_rows_without_an_event_time_do_not_count() -> None:
    reading = fresh(3.0, math.nan, math.nan).take()
    assert sum(reading.bucket_counts) == 1
    assert reading.sum_s == pytest.approx(3.0)


def test_events_from_the_future_count_as_fresh() -> None:
    reading = fresh(-3600.0).take()
    assert reading.bucket_counts[0] == 1
    assert reading.sum_s == 0.0


def test_rows_older_than_every_bucket_are_not_lost() -> None:
    reading = fresh(1e9).take()
    assert reading.bucket_counts[-1] == 1
    assert reading.p50_s == FRESHNESS_S[-1]


def test_quantiles_are_of_all_ranks_and_buckets_of_this_one() -> None:
    mine, other = fresh(1.0), fresh(100.0, 100.0, 100.0)
    sent: list[torch.Tensor] = []
    other.take(lambda tensor: sent.append(tensor.clone()))
    reading = mine.take(lambda tensor: tensor.add_(sent[0]))
    assert sum(reading.bucket_counts) == 1
    assert reading.p50_s == pytest.approx(100.0, rel=STEP - 1)


def test_an_empty_batch_changes_nothing() -> None:
    freshness = fresh(1.0)
    freshness.update(torch.empty(0, dtype=torch.float64), NOW_S)
    assert sum(freshness.take().bucket_counts) == 1
