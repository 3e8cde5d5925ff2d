"""Packed raw buffers: what goes in comes out as the program's input, partial batches and overflow included."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.batch import RawBatch
from rap_trainer.captured.raw import Overflow, RawBuffer, RawLayout, raw_layout
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program

CPU = torch.device("cpu")
DOCUMENT = plan_job(0, max_rows=100, dim=8)


@pytest.fixture(scope="module")
def graph() -> FeatureGraph:
    compiled, problems = compile_features(RAPJob.model_validate(DOCUMENT).spec)
    assert compiled is not None, problems
    return compiled


@pytest.fixture
def layout(graph: FeatureGraph) -> RawLayout:
    return raw_layout(graph, batch_size=32, capacities={})


def raw(rows: int, seed: int = 1) -> RawBatch:
    return synthetic_batch(DOCUMENT, rows, seed=seed)


def test_parts_are_aligned_and_disjoint(layout: RawLayout) -> None:
    parts = sorted(layout.parts, key=lambda part: part.start)
    assert all(part.start % 256 == 0 for part in parts)
    assert all(a.end <= b.start for a, b in pairwise(parts))
    assert parts[-1].end <= layout.num_bytes


@pytest.mark.parametrize("threads", [False, True], ids=["one-thread", "packers"])
def test_a_packed_batch_preprocesses_as_the_batch_itself(graph: FeatureGraph, layout: RawLayout, threads: bool) -> None:
    buffer, batch, program = RawBuffer(layout, CPU), raw(32), Program(graph)
    with ThreadPoolExecutor(3) as workers:
        buffer.pack(raw(32, seed=9), workers if threads else None)
        buffer.pack(batch, workers if threads else None)
    packed, expected = program.run(buffer.batch()), program.run(batch)
    assert torch.equal(packed.dense_BD, expected.dense_BD)
    assert torch.equal(packed.sparse.values(), expected.sparse.values())
    assert torch.equal(packed.sparse.lengths(), expected.sparse.lengths())


def test_rows_past_a_partial_batch_are_empty_lists_and_nulls_of_the_batch_before_are_gone(
    graph: FeatureGraph, layout: RawLayout
) -> None:
    buffer, batch = RawBuffer(layout, CPU), raw(5)
    buffer.pack(raw(32))
    columns = {name: replace(column, nulls_N=None) for name, column in batch.columns.items()}
    buffer.pack(replace(batch, columns=columns, global_rows=20))
    assert int(buffer.part("", "num_rows")) == 5
    assert float(buffer.part("", "scale")) == pytest.approx(0.05)
    for name in graph.inputs:
        assert not buffer.part(name, "nulls").any()
        if graph.columns[name].is_list:
            assert not buffer.part(name, "lengths")[5:].any()


def test_more_elements_than_room_are_refused_before_anything_is_written(layout: RawLayout) -> None:
    buffer, batch = RawBuffer(layout, CPU), raw(32)
    column = batch.columns["cat_3"]
    long = replace(column, values_N=torch.arange(64), lengths_B=torch.full((32,), 2, dtype=torch.int32), nulls_N=None)
    with pytest.raises(Overflow, match="cat_3 64") as error:
        buffer.pack(replace(batch, columns={**batch.columns, "cat_3": long}))
    assert error.value.needed == {"cat_3": 64}
    assert not buffer.bytes.any()
    with pytest.raises(ValueError, match="33 rows, captured for 32"):
        buffer.pack(raw(33))


def test_a_larger_buffer_takes_over_what_a_smaller_one_holds(graph: FeatureGraph, layout: RawLayout) -> None:
    small, batch = RawBuffer(layout, CPU), raw(32)
    small.pack(batch)
    large = RawBuffer(raw_layout(graph, batch_size=32, capacities={"cat_3": 500}), CPU)
    large.take_over(small)
    for part in small.layout.parts:
        held = large.part(part.column, part.field)
        assert torch.equal(held[: part.size], small.part(part.column, part.field))
        assert not held[part.size :].any()
    assert torch.equal(large.header, small.header)
    assert torch.equal(large.part("cat_3", "values")[:32], batch.columns["cat_3"].values_N)
