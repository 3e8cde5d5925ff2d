"""The cost model: fitted coefficients, curves between probes, and what the shipped H200 profile says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner.random_tasks import random_profile, random_task
from rap_contract.problem import InvalidDocument
from rap_contract.profile import KernelSample, Profile
from rap_planner.cost import Costs, Curve
from rap_planner.enumerate import Enumerator
from rap_planner.fit import fit, least_squares, predict, share_within
from rap_planner.loads import Estimator
from rap_planner.search import Planner
from rap_planner.task import Item, Piece, Task

US, MB = 1e-6, 1e6


def samples(noise: float, number: int = 60) -> list[KernelSample]:
    draw = random.Random(0)
    found = []
    for _ in range(number):
        num_bytes, num_ops = int(draw.uniform(1, 200) * MB), int(draw.uniform(1, 200) * MB)
        programs = draw.choice([None, 16, 64, 128])
        share = 1.0 if programs is None else min(1.0, programs / 128)
        largest = draw.uniform(0.01, 0.5)
        seconds = 3 * US + (num_bytes * (2.5e-13 + largest * 1e-13) + num_ops * 1e-13) / share
        found.append(
            KernelSample(
                stage="lanes",
                num_bytes=num_bytes,
                num_ops=num_ops,
                largest_share=largest,
                programs=programs,
                seconds=seconds * (1 + draw.uniform(-noise, noise)),
            )
        )
    return found


def test_coefficients_of_exact_samples_are_found_again() -> None:
    found = fit(samples(0.0))
    assert found.launch_seconds == pytest.approx(3 * US, rel=1e-3)
    assert found.seconds_per_byte == pytest.approx(2.5e-13, rel=1e-3)
    assert found.seconds_per_op == pytest.approx(1e-13, rel=1e-3)
    assert found.imbalance_seconds_per_byte == pytest.approx(1e-13, rel=1e-3)
    assert found.full_programs == pytest.approx(128)
    assert found.error_ratio < 1e-6


def test_the_error_bar_covers_nine_of_ten_kernels_that_were_not_fitted() -> None:
    noisy = samples(0.2, 120)
    found = fit(noisy[:90])
    errors = [abs(predict(sample, found) / sample.seconds - 1) for sample in noisy[90:]]
    assert 0.05 < found.error_ratio < 0.3
    assert sum(error <= 1.2 * found.error_ratio for error in errors) >= 0.85 * len(errors)
    assert share_within(noisy, found, ratio=10.0) == 1.0


def test_terms_that_make_nothing_slower_get_no_negative_rate() -> None:
    flat = [sample.model_copy(update={"seconds": 5 * US, "programs": None}) for sample in samples(0.0)]
    found = fit(flat)
    assert found.launch_seconds == pytest.approx(5 * US)
    assert min(found.seconds_per_byte, found.seconds_per_op, found.imbalance_seconds_per_byte) >= 0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InvalidDocument, match="at least 8 kernel samples"):
        fit(samples(0.0, 7))


def test_columns_that_say_the_same_are_not_divided_by_zero() -> None:
    solution = least_squares([[x, x] for x in (1.0, 2.0, 3.0)], [2.0, 4.0, 6.0])
    assert sum(solution) == pytest.approx(2.0)


POINTS = st.lists(st.tuples(st.floats(1e-6, 1e-2), st.floats(0, 1e-2)), min_size=1, max_size=8)


@given(points=POINTS, a=st.floats(0, 2e-2), b=st.floats(0, 2e-2))
def test_more_work_in_a_window_never_costs_less(points: list[tuple[float, float]], a: float, b: float) -> None:
    curve = Curve.through(points)
    assert curve(min(a, b)) <= curve(max(a, b)) + 1e-12
    assert curve(0.0) == 0.0


def test_beyond_the_last_probe_everything_is_exposed() -> None:
    curve = Curve.through([(10 * US, 0.0), (20 * US, 4 * US)])
    assert curve(15 * US) == pytest.approx(2 * US)
    assert curve(50 * US) == pytest.approx(34 * US)


def test_work_is_conserved_when_features_move_to_their_owners() -> None:
    task = random_task(11, ranks=3)
    estimator = Estimator(Costs(random_profile(11)), task)
    movable = Enumerator().choices(task, estimator.costs).movable
    own = sum(estimator.loads(frozenset())[0].num_bytes) * task.num_ranks
    owners = {task.items[n].owner for n in movable}
    assert owners == {0, 1, 2}
    moved = sum(sum(load.num_bytes) for load in estimator.loads(frozenset(movable)))
    assert moved == pytest.approx(own)


def test_idle_ranks_take_work_that_the_busy_rank_then_does_not_have() -> None:
    profile = random_profile(0).model_copy(update={"windows": tuple(without_probes(random_profile(0)))})
    work = (Piece(kernel=0, num_bytes=100 * MB, num_ops=0),)
    item = Item(name="f", group="0", chain="c", pieces=work, raw_bytes=1.0, out_bytes=1.0, owner=1)
    task = Task(job="j", items=(item,), kernels=random_task(0, kernels=1).kernels, idle_seconds=(0.0, 200 * US))
    assert Planner().search(task, profile).best.owned == {0}
    balanced = replace(task, idle_seconds=(0.0, 0.0))
    assert not Planner().search(balanced, profile).best.owned


def without_probes(profile: Profile) -> list[object]:
    return [window.model_copy(update={"responses": ()}) for window in profile.windows]


def test_a_window_without_probes_hides_nothing() -> None:
    profile = random_profile(0).model_copy(update={"windows": tuple(without_probes(random_profile(0)))})
    result = Planner(enumerator=Enumerator(table_owner=False)).search(random_task(0), profile)
    assert result.best.seconds == pytest.approx(result.inline.seconds)
    assert result.bound_seconds <= result.best.seconds
