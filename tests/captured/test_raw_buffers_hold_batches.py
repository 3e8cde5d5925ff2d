"""Packed raw buffers: what goes in comes out as the program's input, partial batches and overflow included."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.batch import Column, RawBatch
from rap_trainer.bench.blocks import with_blocks
from rap_trainer.captured.copy_rows import Copier
from rap_trainer.captured.raw import Overflow, RawBuffer
from rap_trainer.captured.raw_layout import RawLayout, raw_layout
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program

CPU = torch.device("cpu")
DOCUMENT = plan_job(0, max_rows=100, dim=8)


@cache
def compiled() -> FeatureGraph:
    graph, problems = compile_features(RAPJob.model_validate(DOCUMENT).spec)
    assert graph is not None, problems
    return graph


@pytest.fixture
def graph() -> FeatureGraph:
    return compiled()


@pytest.fixture
def layout(graph: FeatureGraph) -> RawLayout:
    return raw_layout(graph, batch_size=32, capacities={})


def raw(rows: int, seed: int = 1) -> RawBatch:
    return synthetic_batch(DOCUMENT, rows, seed=seed)


def test_parts_are_aligned_and_disjoint(layout: RawLayout) -> None:
    parts = sorted(layout.parts, key=lambda part: part.start)
    assert all(part.start % 16 == 0 for part in parts)
    assert all(a.end <= b.start for a, b in pairwise(parts))
    assert parts[-1].end <= layout.num_bytes


def test_columns_of_one_type_lie_side_by_side_as_sources_deliver_them(graph: FeatureGraph, layout: RawLayout) -> None:
    blocks = with_blocks(raw(32), graph).blocks
    runs = [(run.field, run.columns) for run in layout.runs if run.field == "values"]
    assert runs == [(block.field, block.names) for block in blocks if block.field == "values"]
    assert layout.moving_bytes < layout.num_bytes


@pytest.mark.parametrize("blocks", [False, True], ids=["columns", "blocks"])
@pytest.mark.parametrize("threads", [False, True], ids=["one-thread", "packers"])
def test_a_packed_batch_preprocesses_as_the_batch_itself(
    graph: FeatureGraph, layout: RawLayout, threads: bool, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rap_trainer.captured.raw.SHARED_BYTES", 0)
    buffer, batch, program = RawBuffer(layout, CPU), raw(32), Program(graph)
    with ThreadPoolExecutor(3) as workers:
        buffer.pack(raw(32, seed=9), workers if threads else None)
        buffer.pack(with_blocks(batch, graph) if blocks else batch, workers if threads else None)
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


@given(rows=st.lists(st.tuples(st.integers(1, 32), st.booleans(), st.integers(0, 2)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=25)
def test_batches_with_and_without_blocks_and_nulls_leave_what_they_hold(rows: list[tuple[int, bool, int]]) -> None:
    """Whatever came before: partial batches, columns that have nulls only sometimes, lists longer than one element."""
    graph = compiled()
    layout = raw_layout(graph, batch_size=32, capacities={"cat_5": 99})
    pinned, device = RawBuffer(layout, CPU), RawBuffer(layout, CPU)
    for num_rows, blocks, change in rows:
        batch = _changed(raw(num_rows, seed=change), change)
        pinned.pack(with_blocks(batch, graph) if blocks else batch)
        device.receive(pinned)
        _holds(device, batch, graph)


def _holds(buffer: RawBuffer, batch: RawBatch, graph: FeatureGraph) -> None:
    assert int(buffer.part("", "num_rows")) == batch.num_rows
    for name in layout_columns(buffer.layout):
        column = batch.columns[name]
        held = column.values_N.numel()
        assert torch.equal(buffer.part(name, "values")[:held], column.values_N)
        if name != graph.label:
            nulls_N = torch.zeros(held, dtype=torch.bool) if column.nulls_N is None else column.nulls_N
            assert torch.equal(buffer.part(name, "nulls")[:held], nulls_N)
        if column.lengths_B is not None:
            lengths_B = buffer.part(name, "lengths")
            assert torch.equal(lengths_B[: batch.num_rows], column.lengths_B)
            assert not lengths_B[batch.num_rows :].any()


def layout_columns(layout: RawLayout) -> list[str]:
    return [part.column for part in layout.parts if part.field == "values"]


def _changed(batch: RawBatch, change: int) -> RawBatch:
    """1: half of the columns have no nulls; 2: cat_4 and cat_5 have lists of two elements in half of the rows."""
    columns = dict(batch.columns)
    if change == 1:
        columns = {
            name: replace(c, nulls_N=c.nulls_N if i % 2 else None) for i, (name, c) in enumerate(columns.items())
        }
    if change == 2:
        for name in ("cat_4", "cat_5"):
            lengths_B = torch.arange(batch.num_rows, dtype=torch.int32) % 2 * (2 if name == "cat_5" else 1)
            size = int(lengths_B.sum())
            columns[name] = replace(columns[name], values_N=torch.arange(size), nulls_N=None, lengths_B=lengths_B)
    return replace(batch, columns=columns)


def in_wider_memory(batch: RawBatch) -> RawBatch:
    """Blocks as a source cuts them out of a piece of many rows."""
    blocks = []
    for block in batch.blocks:
        wide = torch.cat([block.data_CB.flip(1), block.data_CB, block.data_CB], 1)
        blocks.append(replace(block, data_CB=wide[:, batch.num_rows : 2 * batch.num_rows]))
    return replace(batch, blocks=tuple(blocks))


@pytest.mark.parametrize("nulls", [True, False])
def test_pinned_blocks_go_to_the_device_without_being_packed(
    graph: FeatureGraph, layout: RawLayout, monkeypatch: pytest.MonkeyPatch, nulls: bool
) -> None:
    host, device, packed = (RawBuffer(layout, CPU) for _ in range(3))
    first, batch = with_blocks(raw(32, seed=3), graph), in_wider_memory(with_blocks(raw(32, seed=4), graph))
    if not nulls:
        first, batch = (
            replace(
                each,
                columns={name: replace(column, nulls_N=None) for name, column in each.columns.items()},
                blocks=tuple(block for block in each.blocks if block.field == "values"),
            )
            for each in (first, batch)
        )
    assert device.copies(host, batch) is None  # it holds no lengths yet, and nothing is pinned here
    host.pack(first)
    device.receive(host)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    copies = device.copies(host, batch)
    assert copies is not None
    device.receive_as_it_is(host, batch, copies, Copier(None))
    packed.pack(batch)
    assert torch.equal(device.bytes, packed.bytes)
    with_others = with_blocks(raw(31, seed=5), graph)
    assert device.copies(host, with_others) is None  # fewer rows: their lengths must be written


def test_null_flags_of_an_earlier_batch_do_not_stay(
    graph: FeatureGraph, layout: RawLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, device = RawBuffer(layout, CPU), RawBuffer(layout, CPU)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    batch = with_blocks(raw(32), graph)
    host.pack(batch)
    device.receive(host)
    none = replace(
        batch,
        columns={name: replace(column, nulls_N=None) for name, column in batch.columns.items()},
        blocks=tuple(block for block in batch.blocks if block.field == "values"),
    )
    assert device.copies(host, none) is None


@given(rows=st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=25)
def test_pinned_lists_go_to_the_device_as_they_are_whatever_came_before(rows: list[tuple[bool, bool, int]]) -> None:
    """Lists that no block holds, batches that must be packed in between, and flags that some have only."""
    graph = compiled()
    layout = raw_layout(graph, batch_size=32, capacities={"cat_5": 99})
    host, device = RawBuffer(layout, CPU), RawBuffer(layout, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
        for whole, blocks, change in rows:
            batch = _changed(raw(32 if whole else 20, seed=change), change)
            batch = with_blocks(batch, graph) if blocks else batch
            copies = device.copies(host, batch)
            assert copies is not None or not whole or change or blocks  # a change takes null flags away
            if copies is None:
                host.pack(batch)
                device.receive(host)
            else:
                device.receive_as_it_is(host, batch, copies, Copier(None))
            _holds(device, batch, graph)


def test_pinned_lists_without_room_are_refused_before_anything_is_copied(
    layout: RawLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    host, device = RawBuffer(layout, CPU), RawBuffer(layout, CPU)
    with pytest.raises(Overflow, match="cat_5 64") as error:
        device.copies(host, _with_longer_lists(raw(32)))
    assert set(error.value.needed) == {"cat_5"}
    assert not device.bytes.any()


def _with_longer_lists(batch: RawBatch) -> RawBatch:
    lengths_B = torch.full((batch.num_rows,), 2, dtype=torch.int32)
    column = Column(values_N=torch.arange(2 * batch.num_rows), lengths_B=lengths_B)
    return replace(batch, columns={**batch.columns, "cat_5": column})
