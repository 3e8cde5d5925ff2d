"""Lists sampled with one rate and salt share their draw: the same elements as without, long rows and all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion.fusion_jobs import batch_of, dense, expect_equal, fused_of, graph_of, sparse
from rap_trainer.program import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
FILL: dict[str, Any] = {"fillNull": {"value": 0}}
HASH: dict[str, Any] = {"sigridHash": {"salt": 3}}
SHARED: dict[str, Any] = {"sample": {"rate": 0.6, "salt": 4}}
FEATURES = [
    sparse("plain", "ids", SHARED, HASH),
    sparse("filled", "more", FILL, SHARED, HASH),
    sparse("kept", "ids", FILL, SHARED, {"firstx": {"n": 2}}, HASH),
    sparse("limited", "more", {"firstx": {"n": 4}}, SHARED, HASH),
    sparse("both", "few", FILL, {"firstx": {"n": 9}}, SHARED, {"firstx": {"n": 3}}),
    sparse("narrow", "ids32", FILL, SHARED),
    sparse("computed", "few", {"ngram": {"n": 2}}, SHARED, HASH),
    sparse("placed", "more", FILL, SHARED, {"enumerate": {}}),
    sparse("grams", "ids", FILL, SHARED, {"ngram": {"n": 2}}, HASH),
    sparse("weighted", "ids", FILL, SHARED, HASH, weights="scores"),
    {**sparse("skipping", "ids", SHARED, {"firstx": {"n": 3}}, HASH), "nulls": "skip"},
    {**sparse("weighted_skipping", "more", SHARED, HASH, weights="more_scores"), "nulls": "skip"},
    {**sparse("picked", "ids", HASH), "nulls": "skip"},
    {**sparse("picked_first", "more", {"firstx": {"n": 3}}, HASH, weights="more_scores"), "nulls": "skip"},
    {**sparse("moved", "few", {"ngram": {"n": 2}}, HASH), "nulls": "skip"},
    {**dense("compared", "ids", {"idOverlapCount": {"match": "few"}}, FILL), "nulls": "skip"},
    sparse("all", "ids", FILL, {"sample": {"rate": 1.0}}, HASH),
    sparse("all_again", "more", FILL, {"sample": {"rate": 1.0}}, HASH),
    sparse("none", "ids", FILL, {"sample": {"rate": 0.0}}, HASH),
    sparse("none_again", "more", FILL, {"sample": {"rate": 0.0}}, HASH),
    sparse("alone", "ids", FILL, {"sample": {"rate": 0.6, "salt": 5}}, HASH),
]
LENGTHS = {"few": 3, "up to what a draw holds": 32, "some beyond it": 50}
NULLS = ("ids", "ids32", "more", "few", "scores")


def check(longest: int, rows: int, device: str, *, times: int = 1) -> None:
    features = [{**each, "name": f"{each['name']}_{n}"} for n in range(times) for each in FEATURES]
    graph = graph_of(features)
    program, fused = Program(graph), fused_of(graph, device)
    for nulls in ((), NULLS):
        raw = batch_of(graph, rows, seed=longest, nulls=nulls, device=device, longest=longest)
        expect_equal(fused.run(raw), program.run(raw))
    assert 4 in {draw.salt for draw in fused.groups.draws}
    assert {*fused.groups.found.values()} == {"by_row", "by_place"}


@pytest.mark.parametrize("longest", LENGTHS.values(), ids=LENGTHS)
def test_elements_are_those_of_the_eager_program(longest: int) -> None:
    check(longest, 11, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("longest", [3, 20, 128, 300])
def test_elements_are_those_of_the_eager_program_on_a_gpu(longest: int) -> None:
    assert torch.cuda.is_available()
    check(longest, 517, "cuda", times=8)


def test_a_row_of_each_group_may_be_too_long() -> None:
    """Beside rows of a group that all fit."""
    graph = graph_of(FEATURES[:7])
    raw = batch_of(graph, 40, seed=3, longest=36)
    lengths_B = raw.columns["ids"].lengths_B
    assert lengths_B is not None
    longest = lengths_B.view(10, 4).amax(1)
    assert int(longest.min()) <= 32 < int(longest.max())
    fused = fused_of(graph, "cpu")
    expect_equal(fused.run(raw), Program(graph).run(raw))


def test_a_draw_that_few_lists_take_is_not_made_for_all() -> None:
    groups = fused_of(graph_of(FEATURES), "cpu").groups
    assert {draw.salt for draw in groups.draws} == {4, 0}
    drawing = [launch for launch in groups.launches if launch.draws]
    assert [launch.end - launch.first for launch in drawing] == [3]
    assert "alone" not in drawing[0].features
    assert not [launch for launch in fused_of(graph_of(FEATURES[-1:]), "cpu").groups.launches if launch.draws]
