"""Sizes of list features follow how lengths are spread, not their mean alone."""

from __future__ import annotations

import random
from statistics import mean

import pytest
import torch
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.profile import GroupWorkload, Workload
from rap_planner.lengths import at_most, crossed, grams, of_column, shares_of
from rap_planner.lengths import mean as mean_of
from rap_planner.work import mean_lengths
from rap_trainer.plan_inputs import works_for
from rap_trainer.plans import plan_job
from rap_trainer.profiling.batches import pool, shape_of, workload_of
from rap_trainer.program import Program

LENGTHS = [round(random.Random(7).lognormvariate(2, 1)) for _ in range(4000)]
SHARES = shares_of(LENGTHS)


@pytest.mark.parametrize("limit", [1, 2, 5, 20, 50])
def test_what_a_limit_leaves_is_within_a_few_percent_of_the_lists_themselves(limit: int) -> None:
    assert mean_of(at_most(SHARES, limit)) == pytest.approx(mean(min(each, limit) for each in LENGTHS), rel=0.04)


def test_pairs_of_two_lists_are_counted_list_by_list() -> None:
    draw = random.Random(8)
    pairs = [min(min(draw.choice(LENGTHS), 5) * min(draw.choice(LENGTHS), 5), 20) for _ in range(20_000)]
    assert mean_of(crossed(at_most(SHARES, 5), at_most(SHARES, 5), 20)) == pytest.approx(mean(pairs), rel=0.03)


def test_windows_of_neighbours_are_those_of_the_lists_themselves() -> None:
    assert mean_of(grams(SHARES, 4)) == pytest.approx(mean(max(n - 3, min(n, 1)) for n in LENGTHS), rel=0.03)


def test_a_shape_has_the_mean_that_the_stream_has_lately() -> None:
    lengths = of_column(GroupWorkload(mean_list_length=30.0, list_shape=(1.0, 2.0, 6.0)))
    assert lengths == pytest.approx((10.0, 20.0, 60.0))


def test_a_workload_that_names_no_shape_gets_the_profiles_but_single_ids_stay_single() -> None:
    columns = {"long": GroupWorkload(mean_list_length=9.0), "single": GroupWorkload(mean_list_length=1.0)}
    shaped = Workload(columns=columns).shaped((1.0, 3.0))
    assert of_column(shaped.of("long")) == pytest.approx((4.5, 13.5))
    assert of_column(shaped.of("single")) == (1.0,)


def test_no_lists_have_no_length() -> None:
    assert shares_of([]) == (0.0,)
    assert shape_of(Workload()) == ()


def test_made_lists_of_a_job_are_as_long_as_the_planner_says() -> None:
    document = plan_job(4, max_rows=1000)
    graph, problems = compile_features(RAPJob.model_validate(document).spec)
    assert graph is not None, problems
    batch = pool(document, 512, mean_length=20.0, seed=3, device=torch.device("cpu"))
    made = Program(graph).run(batch).sparse.lengths().view(len(graph.sparse), -1).double().mean(dim=1)
    predicted = mean_lengths(graph, workload_of([batch]))
    means = torch.tensor([predicted[feature.node] for feature in graph.sparse], dtype=torch.float64)
    assert float((means / made - 1).abs().median()) < 0.03
    assert float(means.sum() / made.sum()) == pytest.approx(1, rel=0.03)


def test_nulls_that_are_skipped_and_long_lists_that_are_cut_are_no_work_of_kernels() -> None:
    document = plan_job(4, max_rows=1000)
    features = document["spec"]["features"]
    dense = next(each for each in features if "table" not in each)
    document["spec"]["features"] = [dense, *[each for each in features if "weights" in each][:1]]
    graph, problems = compile_features(RAPJob.model_validate(document).spec)
    assert graph is not None, problems

    def elements(load: GroupWorkload) -> float:
        works = works_for(graph, rows=64, workload=Workload(default=load), fused=True, on_gpu=True)
        return sum(entry.ops["sigrid_hash"] for work in works for entry in work.entries)

    alike = elements(GroupWorkload(mean_list_length=20))
    assert elements(GroupWorkload(mean_list_length=20, null_ratio=0.5)) == pytest.approx(alike / 2, rel=0.02)
    few_long = GroupWorkload(
        mean_list_length=20, list_shape=(1, 1, 1, 77)
    )  # the first 30 of what is sampled are hashed
    assert elements(few_long) == pytest.approx(alike / (0.8 * 20) * (3 * 0.8 + 30) / 4, rel=0.02)
