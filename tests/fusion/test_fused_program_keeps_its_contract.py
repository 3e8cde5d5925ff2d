"""What a fused program promises beside values: overflow is seen, NaN counted, bad batches named, buffers the caller's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fusion.fusion_jobs import batch_of, dense, expect_equal, fused_of, graph_of, sparse
from rap_trainer.batch import Column
from rap_trainer.fusion import Block, FusedProgram, Limits, OutputLayout, buffers
from rap_trainer.program import Program
from rap_trainer.program.columns import BatchError

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
FILL: dict[str, Any] = {"fillNull": {"value": 0}}
HASH: dict[str, Any] = {"sigridHash": {"salt": 3}}
CPU = torch.device("cpu")
LISTS = [
    dense("number", "f32", FILL),
    sparse("a", "ids", HASH),
    sparse("b", "i64", FILL, HASH),
    sparse("c", "more", HASH, {"firstx": {"n": 2}}),
]
DRAWN = sparse("drawn", "ids", {"sample": {"rate": 0.7}}, {"firstx": {"n": 3}}, HASH)


def capacities(raw: Any) -> dict[str, int]:
    return {name: each.values_N.numel() for name, each in raw.columns.items() if each.lengths_B is not None}


def test_blocks_hold_their_features_at_their_bases() -> None:
    graph = graph_of(LISTS)
    raw = batch_of(graph, 9, seed=1)
    layout = OutputLayout(
        blocks=(
            Block(features=("c", "b"), base=3, capacity=40),
            Block(features=("a",), base=50, capacity=60, lengths_row=3),
        )
    )
    fused = FusedProgram(graph, CPU, limits=Limits(batch_size=9, capacities=capacities(raw)), layout=layout)
    outputs = fused.new_outputs(ids_N=torch.full((120,), -7), lengths_FB=torch.full((4 * 9,), -7, dtype=torch.int32))
    fused.launch(fused.bind(raw), outputs)
    expected = Program(graph).run(raw).sparse.to_dict()
    first = torch.cat([expected["c"].values(), expected["b"].values()])
    second = expected["a"].values()
    assert torch.equal(outputs.ids_N[3 : 3 + first.numel()], first)
    assert torch.equal(outputs.ids_N[50 : 50 + second.numel()], second)
    assert outputs.block_totals_P.tolist() == [first.numel(), second.numel()]
    untouched = torch.ones(120, dtype=torch.bool)
    untouched[3 : 3 + first.numel()] = untouched[50 : 50 + second.numel()] = False
    assert bool((outputs.ids_N[untouched] == -7).all())
    lengths = outputs.lengths_FB.view(4, 9)
    for row, name in ((0, "c"), (1, "b"), (3, "a")):
        assert torch.equal(lengths[row], expected[name].lengths())
    assert bool((lengths[2] == -7).all()), "the row of a slack feature belongs to the caller"
    assert int(outputs.overflow) == 0


def test_a_batch_that_does_not_fit_its_block_is_flagged_and_stays_inside_the_buffer() -> None:
    graph = graph_of(LISTS)
    raw = batch_of(graph, 9, seed=1)
    layout = OutputLayout(blocks=(Block(features=("a", "b", "c"), capacity=5),))
    fused = FusedProgram(graph, CPU, limits=Limits(batch_size=9, capacities=capacities(raw)), layout=layout)
    backing = torch.full((40,), -7)
    outputs = fused.new_outputs(ids_N=backing[:5])
    fused.launch(fused.bind(raw), outputs)
    assert int(outputs.overflow) == 1
    assert int(outputs.block_totals_P[0]) > 5


def test_pairs_that_outgrow_their_room_are_computed_again_with_more() -> None:
    graph = graph_of(
        [dense("n", "f32", FILL), sparse("pairs", "few", {"cartesian": {"with": "more", "max": 1000}}, HASH)]
    )
    raw = batch_of(graph, 2, seed=5, longest=4)
    long = {
        name: Column(values_N=torch.arange(48), lengths_B=torch.full((2,), 24, dtype=torch.int32))
        for name in ("few", "more")
    }
    raw = replace(raw, columns={**raw.columns, **long})
    fused = fused_of(graph)
    expect_equal(fused.run(raw), Program(graph).run(raw))
    assert fused.limits.growth > 1


def test_of_pairs_that_outgrow_their_room_later_ops_see_those_that_fit() -> None:
    pairs: list[dict[str, Any]] = [
        {"cartesian": {"with": "more", "max": 1000}},
        {"ngram": {"n": 2}},
        {"sample": {"rate": 0.5}},
        HASH,
    ]
    graph = graph_of([sparse("pairs", "few", *pairs)])
    raw = batch_of(graph, 4, seed=5, longest=4)
    long = {
        name: Column(values_N=torch.arange(40), lengths_B=torch.tensor([2, 18, 18, 2]).to(torch.int32))
        for name in ("few", "more")
    }
    raw = replace(raw, columns={**raw.columns, **long})
    fused = FusedProgram(graph, CPU, limits=Limits(batch_size=4, capacities=capacities(raw)))
    outputs = fused.new_outputs()
    fused.launch(fused.bind(raw), outputs)
    assert int(outputs.overflow) == 1
    scratch = fused._plan.runner.scratch
    held = {slot: int(lengths.clamp(min=0).sum()) for slot, lengths in scratch.lengths.items()}
    assert any(held.values())
    assert all(number <= scratch.values[slot].numel() for slot, number in held.items())
    assert int(scratch.offsets.max()) <= max(values.numel() for values in scratch.values.values())
    expect_equal(fused.run(raw), Program(graph).run(raw))


def test_nan_that_bucketize_meets_is_counted_once() -> None:
    classes = {"onehot": {"low": 0, "high": 4, "classes": 3, "dtype": "int64"}}
    chain = [FILL, {"bucketize": {"borders": [0.5, 1.0]}}]
    graph = graph_of([dense("n", "f32", FILL), sparse("one", "f32", *chain), sparse("three", "f32", *chain, classes)])
    raw = batch_of(graph, 40, seed=2)
    expected = Program(graph).run(raw).counters["bucketize_nan"]
    assert int(expected) > 0
    fused = fused_of(graph)
    assert [int(fused.run(raw).counters["bucketize_nan"]) for _ in range(2)] == 2 * [int(expected)]


def test_columns_that_begin_to_hold_nulls_change_the_plan() -> None:
    graph = graph_of([dense("n", "f32", FILL), sparse("a", "ids", HASH), sparse("b", "i64", HASH)])
    program, fused = Program(graph), fused_of(graph)
    for nulls in ((), ("ids",), ("i64", "ids"), ()):
        raw = batch_of(graph, 11, seed=len(nulls), nulls=nulls)
        expect_equal(fused.run(raw), program.run(raw))
    assert fused.limits.nullable == {"ids", "i64"}


def test_a_batch_stays_valid_while_later_ones_are_made() -> None:
    graph = graph_of([dense("n", "f32", FILL), sparse("b", "i64", FILL, HASH)])
    program, fused = Program(graph), fused_of(graph)
    batches = [batch_of(graph, 6, seed=seed) for seed in range(3)]
    made = [fused.run(raw) for raw in batches]
    for raw, result in zip(batches, made, strict=True):
        expect_equal(result, program.run(raw))


def test_a_bounded_grid_gives_the_same() -> None:
    graph = graph_of([*LISTS, DRAWN])
    raw = batch_of(graph, 40, seed=3)
    expect_equal(fused_of(graph, rows=40).run(raw, max_programs=1), Program(graph).run(raw))


def test_equal_buffers_are_bound_once() -> None:
    graph = graph_of([dense("n", "f32", FILL), sparse("b", "i64", FILL, HASH)])
    fused, raw = fused_of(graph), batch_of(graph, 6, seed=0)
    assert fused.bind(raw).pointers is fused.bind(raw).pointers


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (None, "column i64 is missing from the batch"),
        (Column(values_N=torch.zeros(6)), "column i64 is declared int64, its values are torch.float32"),
        (Column(values_N=torch.zeros(12, dtype=torch.int64)[::2]), "column i64 is not contiguous"),
        (Column(values_N=torch.zeros(5, dtype=torch.int64)), "one value for each of 6 rows"),
    ],
    ids=["missing", "type", "strided", "short"],
)
def test_a_bad_batch_is_refused_by_the_column_s_name(column: Column | None, message: str) -> None:
    graph = graph_of([dense("n", "f32", FILL), sparse("b", "i64", FILL, HASH)])
    raw = batch_of(graph, 6, seed=0)
    columns = {name: each for name, each in raw.columns.items() if name != "i64"}
    if column is not None:
        columns["i64"] = column
    with pytest.raises(BatchError, match=message):
        fused_of(graph).run(replace(raw, columns=columns))


def test_weights_that_do_not_match_their_ids_are_refused() -> None:
    graph = graph_of([dense("n", "f32", FILL), sparse("a", "ids", HASH, weights="scores")])
    raw = batch_of(graph, 6, seed=0)
    short = replace(raw.columns["scores"], values_N=raw.columns["scores"].values_N[:-1])
    with pytest.raises(BatchError, match="weights scores and ids ids have lists of different lengths"):
        fused_of(graph).run(replace(raw, columns={**raw.columns, "scores": short}))


def test_positions_beyond_the_table_of_mixed_ones_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of([sparse("a", "ids", {"sample": {"rate": 0.5}}, {"firstx": {"n": 2}}, HASH)])
    raw = batch_of(graph, 11, seed=3)
    expected = Program(graph).run(raw)
    expect_equal(fused_of(graph).run(raw), expected)
    monkeypatch.setattr(buffers, "MIXED_POSITIONS", 2)
    expect_equal(fused_of(graph).run(raw), expected)


def test_scores_of_fewer_elements_than_their_ids_count_as_zero() -> None:
    chain = [{"scoreSum": {"match": "more", "scores": "more_scores"}}, FILL]
    graph = graph_of([dense("sum", "ids", *chain), sparse("b", "i64", FILL, HASH)])
    raw = batch_of(graph, 2, seed=0)
    ones = torch.ones(2, dtype=torch.int32)
    columns = {
        "ids": Column(values_N=torch.tensor([5, 5]), lengths_B=ones),
        "more": Column(values_N=torch.tensor([5, 5, 5, 5]), lengths_B=2 * ones),
        "more_scores": Column(values_N=torch.tensor([1.5, 2.5]), lengths_B=ones),
    }
    fused = fused_of(graph).run(replace(raw, columns={**raw.columns, **columns}))
    assert fused.dense_BD[:, 0].tolist() == [1.5, 2.5]


@pytest.mark.gpu
@pytest.mark.parametrize("max_programs", [None, 5], ids=["full grid", "five programs"])
def test_a_captured_launch_follows_its_buffers_and_allocates_nothing(max_programs: int | None) -> None:
    graph = graph_of([*LISTS, DRAWN])
    batches = [batch_of(graph, 500, seed=seed, device="cuda") for seed in range(3)]
    room = {name: max(capacities(raw)[name] for raw in batches) for name in capacities(batches[0])}
    fused = FusedProgram(graph, torch.device("cuda"), limits=Limits(batch_size=500, capacities=room))

    def padded(name: str, column: Column) -> Column:
        grown = torch.zeros(room.get(name, 500), dtype=column.values_N.dtype, device="cuda")
        return Column(values_N=grown, lengths_B=None if column.lengths_B is None else column.lengths_B.clone())

    columns = {name: padded(name, c) for name, c in batches[0].columns.items()}
    static = replace(batches[0], columns=columns, row_ids_B=batches[0].row_ids_B.clone())
    outputs, binding = fused.new_outputs(), fused.bind(static)
    fused.launch(binding, outputs, max_programs=max_programs)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        fused.launch(binding, outputs, max_programs=max_programs)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    for raw in batches:
        static.row_ids_B.copy_(raw.row_ids_B)
        for name, column in raw.columns.items():
            static.columns[name].values_N[: column.values_N.numel()].copy_(column.values_N)
            lengths_B = static.columns[name].lengths_B
            if lengths_B is not None and column.lengths_B is not None:
                lengths_B.copy_(column.lengths_B)
        captured.replay()
        expected = Program(graph).run(raw)
        num = expected.sparse.values().numel()
        assert int(outputs.overflow) == 0
        assert outputs.block_totals_P.tolist() == [num]
        assert torch.equal(outputs.ids_N[:num], expected.sparse.values())
        assert torch.equal(outputs.lengths_FB, expected.sparse.lengths())
        torch.testing.assert_close(outputs.dense_BD, expected.dense_BD, equal_nan=True)
