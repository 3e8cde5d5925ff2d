"""The cost model: fitted coefficients, curves between probes, and what the shipped H200 profile says."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner.random_tasks import random_profile, random_task
from rap_contract.problem import InvalidDocument
from rap_contract.profile import KernelSample, Profile, TileWork
from rap_planner.cost import Costs, Curve
from rap_planner.enumerate import Enumerator
from rap_planner.fit import fit, held_out, least_squares, non_negative, share_within
from rap_planner.kernel_cost import predicted, stretched
from rap_planner.loads import Estimator
from rap_planner.search import Planner
from rap_planner.task import Item, Piece, Task

US, MB = 1e-6, 1e6


def sample(draw: random.Random, *, noise: float, launch: int = 0) -> KernelSample:
    """A kernel that obeys the model: launch, bytes, two element functions, the slowest tile, rounds of a bounded grid."""
    tiles, programs = draw.randint(1, 2000), draw.choice([None, None, 16, 64])
    num_bytes, hashes, fills = draw.uniform(1e3, 2e4), draw.uniform(0, 2000), draw.uniform(0, 2000)
    critical = TileWork(num_bytes=num_bytes, ops={"hash": 2.5 * hashes, "fill": fills})
    if programs is None or programs >= tiles:
        body = num_bytes * 2.5e-13 + hashes * 1e-12 + fills * 2e-13
        slowest = num_bytes * 2.5e-13 + hashes * 2.5e-12 + fills * 2e-13
        seconds = 3 * US + body * tiles * stretched(264, tiles) + 0.5 * slowest * 264
    else:
        seconds = 2 * US + (num_bytes * 1e-10 + hashes * 4e-10 + fills * 1e-10) * math.ceil(tiles / programs)
    return KernelSample(
        stage="lanes",
        launch=launch,
        num_tiles=tiles,
        mean_tile=TileWork(num_bytes=num_bytes, ops={"hash": hashes, "fill": fills}),
        critical_tile=critical,
        programs=programs,
        seconds=seconds * (1 + draw.uniform(-noise, noise)),
    )


def samples(noise: float, number: int = 120) -> list[KernelSample]:
    draw = random.Random(0)
    return [sample(draw, noise=noise) for _ in range(number)]


def test_rates_of_exact_samples_are_found_again() -> None:
    rates = fit(samples(0.0)).stages["lanes"]
    assert rates.full_tiles == 264
    assert rates.launch_seconds == pytest.approx(3 * US, rel=0.05)
    assert rates.seconds_per_byte == pytest.approx(2.5e-13, rel=0.05)
    assert rates.ops["hash"] == pytest.approx(1e-12, rel=0.05)
    assert rates.ops["fill"] == pytest.approx(2e-13, rel=0.05)
    assert rates.narrow is not None
    assert rates.narrow.ops["hash"] == pytest.approx(4e-10, rel=0.05)
    assert rates.error_ratio < 0.02
    assert share_within(held_out(samples(0.0))) == 1.0


def test_the_error_bar_covers_nine_of_ten_kernels_that_were_not_fitted() -> None:
    noisy = samples(0.2, 240)
    rates = fit(noisy[:180]).stages["lanes"]
    errors = [abs(predicted(rates, each) / each.seconds - 1) for each in noisy[180:]]
    assert 0.05 < rates.error_ratio < 0.3
    assert sum(error <= 1.2 * rates.error_ratio for error in errors) >= 0.85 * len(errors)
    assert share_within(held_out(noisy), ratio=10.0) == 1.0


def test_terms_that_make_nothing_slower_get_no_negative_rate() -> None:
    flat = [each.model_copy(update={"seconds": 5 * US, "programs": None}) for each in samples(0.0)]
    rates = fit(flat).stages["lanes"]
    assert rates.launch_seconds == pytest.approx(5 * US, rel=1e-3)
    assert min(rates.seconds_per_byte, rates.seconds_per_op, rates.imbalance, *rates.ops.values()) >= 0


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_of_terms_without_a_negative_rate_fits_better(seed: int) -> None:
    draw = random.Random(seed)
    width = draw.randint(1, 5)
    rows = [[draw.gauss(0.3, 1) for _ in range(width)] for _ in range(draw.randint(width, 12))]

    def squares(rates: Sequence[float]) -> float:
        return sum((sum(a * b for a, b in zip(row, rates, strict=True)) - 1) ** 2 for row in rows)

    best = float(len(rows))
    for number in range(1, width + 1):
        for chosen in combinations(range(width), number):
            solved = least_squares([[row[c] for c in chosen] for row in rows], [1.0] * len(rows))
            rates = [dict(zip(chosen, solved, strict=True)).get(c, 0.0) for c in range(width)]
            best = min(best, squares(rates)) if min(rates) >= 0 else best
    found = non_negative(rows, [1.0] * len(rows))
    assert min(found) >= 0
    assert squares(found) <= best * (1 + 1e-6) + 1e-9


def test_functions_that_always_come_together_share_a_rate_so_that_few_samples_do() -> None:
    draw, few = random.Random(3), []
    for _ in range(12):
        tiles, pairs = draw.randint(500, 5000), draw.uniform(50, 1500)
        ops = {":row": 1.0, ":pair": pairs, "cosine": 2 * pairs, "overlap": 3 * pairs, "jaccard": pairs, "count": pairs}
        work = TileWork(num_bytes=draw.uniform(100, 200), ops=ops)
        seconds = 3 * US + tiles * (2e-9 + pairs * 1e-11)
        few.append(
            KernelSample(
                stage="compare", launch=0, num_tiles=tiles, mean_tile=work, critical_tile=work, seconds=seconds
            )
        )
    assert share_within(held_out(few), ratio=0.05) == 1.0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InvalidDocument, match="at least 8 kernel samples"):
        fit(samples(0.0, 7))


def test_a_launch_of_the_profiled_job_has_rates_of_its_own_and_other_jobs_those_of_its_kind() -> None:
    draw = random.Random(1)
    mine = [sample(draw, noise=0.0, launch=0) for _ in range(60)]
    slower = [each.model_copy(update={"launch": 1, "seconds": 3 * each.seconds}) for each in mine]
    found = fit([*mine, *slower])
    first, second = found.of(["lanes", "lanes"])
    assert second.launch_seconds == pytest.approx(3 * first.launch_seconds, rel=0.05)
    assert found.of(["lanes"]) == (found.stages["lanes"],)
    assert found.of(["compare"]) == (found.stages["lanes"],)


def test_kernels_of_other_jobs_price_kinds_of_kernels_but_no_launch_of_the_profiled_job() -> None:
    draw = random.Random(2)
    mine = [sample(draw, noise=0.0) for _ in range(60)]
    compared = [each.model_copy(update={"stage": "compare", "seconds": 3 * each.seconds}) for each in mine]
    found = fit(mine, others=compared)
    assert found.launches == fit(mine).launches
    assert found.stages["lanes"] == fit(mine).stages["lanes"]
    assert found.stages["compare"].launch_seconds == pytest.approx(3 * found.stages["lanes"].launch_seconds, rel=0.05)


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_few_tiles_take_as_long_as_one_and_many_as_long_as_their_work(full: float, tiles: float) -> None:
    bend = stretched(full, tiles)
    assert max(1.0, full / tiles) <= bend <= 2 * max(1.0, full / tiles)
    assert bend * tiles <= stretched(full, 2 * tiles) * 2 * tiles  # more tiles never take less


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
    own = sum(work.least for work in estimator.loads(frozenset())[0].works) * task.num_ranks
    owners = {task.items[n].owner for n in movable}
    assert owners == {0, 1, 2}
    moved = sum(work.least for load in estimator.loads(frozenset(movable)) for work in load.works)
    assert moved == pytest.approx(own)


def test_idle_ranks_take_work_that_the_busy_rank_then_does_not_have() -> None:
    profile = random_profile(0).model_copy(update={"windows": tuple(without_probes(random_profile(0)))})
    work = (Piece(kernel=0, num_bytes=100 * MB, num_tiles=10_000),)
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
