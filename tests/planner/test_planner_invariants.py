"""What holds for every plan of every task: never worse than inline, never below the bound, the same bytes each time."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.random_tasks import exhaustive, random_profile, random_task
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument
from rap_contract.windows import INLINE, ORDER
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of, sensitivity
from rap_planner.search import Planner, Result

ROUNDING = 1e-9  # s, of sums of a few dozen terms of a millisecond
SEEDS = st.integers(0, 10_000)


def planned(seed: int, **sizes: int) -> Result:
    return Planner().search(random_task(seed, **sizes), random_profile(seed))


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, items=st.integers(1, 10), kernels=st.integers(1, 6), ranks=st.integers(1, 6))
def test_a_plan_is_between_the_bound_and_everything_it_was_compared_with(
    seed: int, items: int, kernels: int, ranks: int
) -> None:
    result = planned(seed, items=items, kernels=kernels, ranks=ranks)
    best = result.best.seconds
    assert best <= min(result.inline.seconds, result.own_rows.seconds, result.in_order.seconds) + ROUNDING
    assert 0 < result.bound_seconds <= best + ROUNDING
    places = [ORDER[window] for window, _ in result.best.schedule]
    assert places == sorted(places)


@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_equal_inputs_give_equal_bytes_and_the_bytes_give_the_plan_back(seed: int) -> None:
    profile = random_profile(seed)
    first, second = (plan_of(planned(seed), profile).to_json() for _ in range(2))
    assert first == second
    assert Plan.from_json(first).to_json() == first


@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_the_parts_of_a_prediction_add_up_to_the_step_that_was_estimated(seed: int) -> None:
    result = planned(seed)
    plan = plan_of(result, random_profile(seed))
    assert plan.prediction.step_seconds == pytest.approx(result.best.seconds, abs=ROUNDING)
    assert all(rejected.more_seconds >= -ROUNDING for rejected in plan.prediction.rejected)


@pytest.mark.parametrize("seed", range(12))
def test_small_jobs_come_within_two_percent_of_an_exhaustive_search(seed: int) -> None:
    task = random_task(seed, items=4, kernels=3, ranks=2)
    profile = random_profile(seed, windows=2)
    found, least = Planner().search(task, profile), exhaustive(task, profile)
    assert found.bound_seconds <= least + ROUNDING
    assert least - ROUNDING <= found.best.seconds <= 1.02 * least


def stopped_after(stop: int, seed: int) -> Result:
    """The search in which the deadline passes at its n-th look."""
    calls = count()
    return Planner().search(random_task(seed), random_profile(seed), deadline=lambda: next(calls) >= stop)


@pytest.mark.parametrize("stop", [0, 1, 2, 5, 20, 200])
def test_a_search_that_is_stopped_gives_a_valid_plan_no_worse_than_inline(stop: int) -> None:
    result = stopped_after(stop, seed=3)
    assert result.best.seconds <= result.inline.seconds
    assert plan_of(result, random_profile(3)).hash


@pytest.mark.parametrize("seed", range(8))
def test_the_inline_plan_is_predicted_exactly_as_long_as_everything_inline(seed: int) -> None:
    prediction = plan_of(stopped_after(0, seed), random_profile(seed)).prediction
    assert prediction.step_seconds == prediction.inline_seconds


def test_more_time_never_makes_a_plan_worse() -> None:
    seconds = [stopped_after(stop, seed=5).best.seconds for stop in (0, 1, 3, 10, 50, 100_000)]
    assert seconds == sorted(seconds, reverse=True)


def test_two_hundred_random_jobs_are_never_worse_than_in_the_papers_order_and_some_are_better() -> None:
    better = 0
    for seed in range(200):
        task = random_task(seed, items=6, kernels=2, ranks=3)
        result = Planner().search(task, random_profile(seed, windows=2))
        assert result.best.seconds <= result.in_order.seconds + ROUNDING
        better += result.best.seconds < result.in_order.seconds - 1e-7
    assert better > 20


@pytest.mark.parametrize("enumerator", [Enumerator(table_owner=False), Enumerator(co_run=False)], ids=["own", "inline"])
def test_choices_that_a_runtime_does_not_have_are_not_made(enumerator: Enumerator) -> None:
    result = Planner(enumerator=enumerator).search(random_task(7), random_profile(7))
    if not enumerator.table_owner:
        assert not result.best.owned
    if not enumerator.co_run:
        assert {window for window, _ in result.best.schedule} == {INLINE}
    assert result.bound_seconds <= result.best.seconds + ROUNDING


def test_a_job_that_fits_no_memory_is_refused_with_what_it_needs() -> None:
    task = replace(random_task(1), memory_bytes=1e6)
    with pytest.raises(InvalidDocument, match=r"needs .* GiB of rank 0"):
        Planner().search(task, random_profile(1))


@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_no_mapping_asks_a_rank_for_more_memory_than_it_has(seed: int) -> None:
    task = random_task(seed)
    tight = replace(task, memory_bytes=1.2 * max(task.memory(frozenset())))
    result = Planner().search(tight, random_profile(seed))
    assert max(tight.memory(result.best.owned)) <= tight.memory_bytes


def test_the_sensitivity_names_each_change_that_was_tried() -> None:
    task, profile = random_task(2), random_profile(2)
    lines = sensitivity(Planner(), task, profile, of=Planner().search(task, profile))
    assert [line.partition(":")[0] for line in lines] == [
        "0.5 x the data",
        "2 x the data",
        "4 x the data",
        "a link of 0.1 x the bandwidth",
    ]
