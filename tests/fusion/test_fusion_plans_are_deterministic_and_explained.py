"""Which chains share a launch: few launches whatever the number of features, the same plan for the same graph."""

from __future__ import annotations

import pytest
from fusion.fusion_jobs import COLUMNS, dense, graph_of, sparse
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJobSpec
from rap_trainer.fusion.explain import explain, planned
from rap_trainer.fusion.groups import Groups
from rap_trainer.fusion.lower import lower
from rap_trainer.fusion.sizes import Sizes
from rap_trainer.fusion.stages import Lane, Stage
from rap_trainer.plans import plan_job

FILL = {"fillNull": {"value": 0}}
HASH = {"sigridHash": {"salt": 3}}
PADDED_LAUNCHES = {0: 1, 1: 1, 2: 1, 3: 1}
"""Launches of plans 0-3 in the captured step's layout, all columns nullable."""
PACKED_LAUNCHES = {0: 8, 1: 8, 2: 4, 3: 4, 4: 15}
"""The same as packed lists. Plan 0's bucketize without fillNull makes a list of a number that may be null."""


def graph_of_plan(number: int) -> FeatureGraph:
    graph, problems = compile_features(RAPJobSpec.model_validate(plan_job(number)["spec"]))
    assert graph is not None, problems
    return graph


def groups_of(graph: FeatureGraph, *, padded: bool = False, nullable: bool = True) -> Groups:
    return planned(graph, nullable=None if nullable else (), padded=padded)


@pytest.mark.parametrize("plan", range(5))
def test_equal_graphs_give_equal_plans(plan: int) -> None:
    first, second = groups_of(graph_of_plan(plan)), groups_of(graph_of_plan(plan))
    assert first == second
    assert explain(first) == explain(second)


@pytest.mark.parametrize("plan", PADDED_LAUNCHES)
def test_the_papers_plans_take_one_launch_in_the_captured_step(plan: int) -> None:
    groups = groups_of(graph_of_plan(plan), padded=True)
    assert len(groups.launches) == PADDED_LAUNCHES[plan]


@pytest.mark.parametrize("plan", PACKED_LAUNCHES)
def test_packed_lists_take_few_launches_too(plan: int) -> None:
    assert len(groups_of(graph_of_plan(plan)).launches) == PACKED_LAUNCHES[plan]


def test_the_number_of_launches_does_not_grow_with_the_features() -> None:
    def launches(number: int) -> int:
        features = [dense(f"d{i}", "f32", FILL, {"logit": {"eps": 1e-5}}) for i in range(number)]
        features += [sparse(f"s{i}", "ids", FILL, HASH, {"firstx": {"n": i + 2}}) for i in range(number)]
        return len(groups_of(graph_of(features)).launches)

    assert launches(1) == launches(50)


def test_every_feature_is_written_once_and_every_fusion_belongs_to_a_launch() -> None:
    graph = graph_of_plan(4)
    groups = groups_of(graph)
    written = [lane.destination for lane in groups.lanes if lane.destination.slot is None]
    written += [stage.destination for stage in groups.stages if stage.destination.slot is None]
    assert len(written) == len(set(written))
    assert {d.index for d in written if d.kind == "ids"} == set(range(len(graph.sparse)))
    assert {d.index for d in written if d.kind == "dense"} == set(range(graph.dense_width))
    skipped = len(groups.raw_lists)
    for kernel, number in (("lanes", len(groups.lanes)), ("values", len(groups.stages))):
        first = skipped if kernel == "values" else 0
        taken = [i for each in groups.launches if each.kernel == kernel for i in range(each.first, each.end)]
        assert taken == list(range(first, first + number))


def test_costly_chains_come_first_so_that_none_runs_alone_at_the_end() -> None:
    features = [
        dense("cheap", "f32", FILL),
        sparse("costly", "i32", FILL, HASH),
        dense("middle", "f32", FILL, {"logit": {"eps": 1e-5}}),
    ]
    groups = groups_of(graph_of(features), nullable=False)
    assert [lane.feature for lane in groups.lanes][:2] == ["costly", "middle"]


@pytest.mark.parametrize("plan", [0, 2, 3])
def test_a_bundle_is_neighbouring_dense_columns_of_one_chain(plan: int) -> None:
    groups = groups_of(graph_of_plan(plan))
    bundles = [[groups.lanes[row] for row in rows] for launch in groups.launches for rows in launch.bundles]
    assert bundles
    for lanes in bundles:
        assert len({lane.form for lane in lanes}) == 1
        first = lanes[0].destination.index
        assert [lane.destination.index for lane in lanes] == list(range(first, first + len(lanes)))
        assert {lane.destination.kind for lane in lanes} == {"dense"}
        assert len(lanes) <= groups.tiles.columns


def test_a_columns_own_borders_keep_it_out_of_a_bundle() -> None:
    features = [dense(f"d{i}", "f32", FILL, {"bucketize": {"borders": [0.5, i + 1.0]}}) for i in range(8)]
    assert not any(launch.bundles for launch in groups_of(graph_of(features)).launches)


def test_an_explanation_names_what_shares_a_launch() -> None:
    features = [
        dense("d", "f32", FILL),
        sparse("s", "ids", FILL, HASH),
        sparse("double", "f64", FILL, {"bucketize": {"borders": [1.0]}}),
    ]
    rows = explain(groups_of(graph_of(features)))
    kernels = [row.kernel for row in rows]
    assert kernels == ["scan", "bases", "values", "lanes", "lanes"]
    assert rows[2].functions == ("fill_int", "sigrid_hash")
    assert "float64" in rows[4].reason
    assert all(row.reason and row.work for row in rows)


def test_chains_without_nulls_or_length_changes_need_no_rows() -> None:
    (stage,) = (s for s in groups_of(graph_of([sparse("s", "ids", HASH)]), nullable=False).stages)
    assert stage.keeps_positions


def test_a_value_passes_through_scratch_only_before_a_second_change_of_structure() -> None:
    one = lower(graph_of([sparse("s", "ids", HASH, {"ngram": {"n": 2}}, {"firstx": {"n": 3}})]), ())
    two = lower(graph_of([sparse("s", "ids", HASH, {"ngram": {"n": 2}}, {"ngram": {"n": 3}})]), ())
    assert [len(one.scratch), len(two.scratch)] == [0, 1]
    assert isinstance(two.waves[0][0], Stage)


def test_a_scalar_chain_with_onehot_ngram_and_firstx_is_lanes() -> None:
    classes = {"onehot": {"low": 0, "high": 8, "classes": 4, "dtype": "int64"}}
    lowered = lower(graph_of([sparse("s", "i32", FILL, classes, {"ngram": {"n": 3}}, {"firstx": {"n": 5}})]), ())
    assert len(lowered.waves) == 1
    assert sum(isinstance(fusion, Lane) and fusion.destination.kind == "ids" for fusion in lowered.outputs) == 5


def test_room_for_lists_follows_their_changes() -> None:
    features = [
        sparse("s", "ids", HASH, {"ngram": {"n": 4}}, {"firstx": {"n": 3}}),
        sparse("t", "ids", {"ngram": {"n": 4}}),
    ]
    stages = [fusion for fusion in lower(graph_of(features), ()).outputs if isinstance(fusion, Stage)]
    sizes = Sizes(batch_size=10, columns=dict.fromkeys(COLUMNS, 100))
    assert [sizes.stage(stage) for stage in stages] == [30, 400]


def test_a_list_that_cannot_be_addressed_is_refused_with_advice() -> None:
    (stage,) = (
        f for f in lower(graph_of([sparse("s", "ids", {"ngram": {"n": 64}})]), ()).outputs if isinstance(f, Stage)
    )
    with pytest.raises(ValueError, match=r"feature s may need .* firstx before"):
        Sizes(batch_size=10, columns={"ids": 2**28}).stage(stage)
