"""Ranks share the rows of a directory exactly once, in one order, whatever their number and restarts."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.stream import parquet_file
from rap_trainer.stream.discovery import FINISHED
from rap_trainer.stream.files import FileSource, FileSourceOptions
from stream.file_jobs import flat, job, ranks, step, table, train, write

BAD = frozenset({0, 3, 4, 40, 41, 42, 43, 44, 45, 99})


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """100 rows in three files and several row groups, ten of them bad."""
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 40, bad=[*BAD]), row_group_size=7)
    write(directory, "b.parquet", table(40, 6, bad=[*BAD]))
    write(directory, "c.parquet", table(46, 54, bad=[*BAD]), row_group_size=11)
    return directory


GOOD = [row for row in range(100) if row not in BAD]


WORLDS = pytest.mark.parametrize(("world_size", "ranks_per_node"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])


@WORLDS
def test_every_good_row_is_trained_exactly_once_in_order(events: Path, world_size: int, ranks_per_node: int) -> None:
    with ranks(job(events, batch_rows=5), world_size, ranks_per_node=ranks_per_node) as sources:
        steps = train(sources)
    assert [row for rows in flat(steps) for row in rows] == GOOD


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_two_ranks_of_half_a_batch_see_the_rows_of_one_rank_step_by_step(events: Path, ranks_per_node: int) -> None:
    with ranks(job(events, batch_rows=8), 1) as sources:
        alone = flat(train(sources))
    with ranks(job(events, batch_rows=4), 2, ranks_per_node=ranks_per_node) as sources:
        together = train(sources)
    assert flat(together) == alone
    assert [len(rows) for rows in together[0]] == [4, 4]


@pytest.mark.parametrize("ranks_per_node", [1, 2, 3])
def test_all_ranks_hold_the_same_positions_of_what_is_begun_after_each_step(events: Path, ranks_per_node: int) -> None:
    with ranks(job(events, batch_rows=5), 3, ranks_per_node=ranks_per_node) as sources:
        while step(sources) is not None:
            begun = [{n: p for n, p in source.positions().items() if p.offset != 0} for source in sources]
            assert begun == begun[:1] * 3
        assert sources[0].positions() == sources[1].positions()
        assert {position.offset for position in sources[0].positions().values()} == {FINISHED}


@settings(max_examples=25, deadline=None)
@given(
    bad=st.sets(st.integers(0, 59), max_size=25),
    cuts=st.lists(st.integers(1, 59), max_size=3, unique=True).map(sorted),
    group_rows=st.integers(1, 30),
    worlds=st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=4),
    steps_each=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    ranks_per_node=st.sampled_from([1, 2, 4]),
)
def test_resuming_anywhere_on_any_number_of_ranks_equals_an_uninterrupted_run(
    bad: set[int], cuts: list[int], group_rows: int, worlds: list[int], steps_each: list[int], ranks_per_node: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "events"
        bounds = [0, *cuts, 60]
        for number, (low, high) in enumerate(pairwise(bounds)):
            rows = table(low, high - low, bad=[*bad])
            write(directory, f"{number}.parquet", rows, row_group_size=group_rows)
        with ranks(job(directory, batch_rows=4), 1) as sources:
            uninterrupted = flat(train(sources))
        resumed, positions = [], None
        for world_size, max_steps in zip([*worlds, 1], [*steps_each[: len(worlds)], 1000], strict=True):
            each = job(directory, batch_rows=4 // world_size)
            with ranks(each, world_size, start=positions, ranks_per_node=ranks_per_node) as sources:
                resumed += flat(train(sources, max_steps=max_steps))
                positions = sources[-1].positions()
        assert resumed == uninterrupted


def test_row_ids_name_a_row_wherever_it_is_read(events: Path) -> None:
    def ids_by_row(world_size: int) -> dict[int, int]:
        found: dict[int, int] = {}
        with ranks(job(events, batch_rows=6), world_size) as sources:
            while (batches := step(sources)) is not None:
                for batch in batches:
                    found |= dict(zip(batch.columns["row"].values_N.tolist(), batch.row_ids_B.tolist(), strict=True))
        return found

    alone = ids_by_row(1)
    assert ids_by_row(3) == alone
    assert len(set(alone.values())) == len(GOOD)


def test_a_batch_holds_the_columns_as_written(events: Path) -> None:
    with ranks(job(events, batch_rows=90), 1) as sources:
        batches = step(sources)
    assert batches is not None
    (batch,) = batches
    expected = table(0, 100).filter(pa.array([row not in BAD for row in range(100)]))
    ids, dense = batch.columns["ids"], batch.columns["dense"]
    assert ids.lengths_B is not None
    assert ids.nulls_N is not None
    assert dense.nulls_N is not None
    assert batch.global_rows == batch.num_rows == 90
    parts = torch.split(ids.values_N, ids.lengths_B.tolist())
    nulls = torch.split(ids.nulls_N, ids.lengths_B.tolist())
    lists = [None if null.tolist() == [True] else part.tolist() for part, null in zip(parts, nulls, strict=True)]
    assert lists == expected.column("ids").to_pylist()
    values = [
        None if null else value for value, null in zip(dense.values_N.tolist(), dense.nulls_N.tolist(), strict=True)
    ]
    assert values == expected.column("dense").to_pylist()
    assert (
        batch.event_times_s_B.tolist()
        == [(events / "a.parquet").stat().st_mtime] * 36 + batch.event_times_s_B.tolist()[36:]
    )


def test_without_flush_a_partial_step_waits(events: Path) -> None:
    with ranks(job(events, batch_rows=64), 1) as (source,):
        assert step([source]) is not None
        assert step([source], flush=False) is None
        rest = step([source])
        assert rest is not None
        assert rest[0].num_rows == 26


@given(rows=st.lists(st.integers(0, 24), min_size=1, max_size=8), flush=st.booleans())
@settings(max_examples=50, deadline=None)
def test_shares_give_what_all_ranks_have_or_wait(rows: list[int], flush: bool) -> None:
    source = FileSource.__new__(FileSource)
    source._step_rows = 24
    shares = source.shares(rows, flush=flush)
    have = min(rows)
    if have == 24 or (flush and have > 0):
        assert shares is not None
        assert sum(shares) == have
        assert max(shares) - min(shares) <= 1
    else:
        assert shares is None


def test_fewer_rows_than_ranks_leave_some_ranks_with_an_empty_batch(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 2))
    with ranks(job(tmp_path / "events", batch_rows=4), 3) as sources:
        batches = step(sources)
    assert batches is not None
    assert sorted(batch.num_rows for batch in batches) == [0, 1, 1]
    empty = min(batches, key=lambda batch: batch.num_rows)
    assert empty.global_rows == 2
    assert empty.columns["ids"].lengths_B is not None
    assert empty.columns["ids"].lengths_B.tolist() == []


def test_several_ranks_without_a_store_are_refused(events: Path) -> None:
    with pytest.raises(ValueError, match="shared store"):
        FileSource(job(events), rank=0, world_size=2)


def test_reading_ahead_stops_at_the_byte_limit_and_goes_on_when_rows_are_taken(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / "events", f"{number:02d}.parquet", table(1000 * number, 1000))
    one_file = 1000 * 50  # bytes of one decoded file, about
    with ranks(job(tmp_path / "events", batch_rows=500), options=FileSourceOptions(limit_bytes=3 * one_file)) as (
        source,
    ):
        most = 0
        rows = 0
        while (batches := step([source])) is not None:
            rows += batches[0].num_rows
            most = max(most, source.counts().buffered_bytes)
    assert rows == 20_000
    assert 0 < most < 6 * one_file


@pytest.mark.parametrize("streamed_bytes", [0, 1 << 40], ids=["through buffered streams", "at once"])
def test_a_large_row_group_is_read_in_pieces_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed_bytes: int
) -> None:
    monkeypatch.setattr(parquet_file, "_STREAMED_GROUP_BYTES", streamed_bytes)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 100_000)
    path = write(tmp_path, "a.parquet", table(0, 20_000))
    pieces = list(parquet_file.ParquetEvents(path).pieces(["label", "row", "dense", "ids"], 17))
    assert pieces[0].first_row == 17
    assert sum(piece.num_rows for piece in pieces) == 20_000 - 17
    assert max(piece.batch.nbytes for piece in pieces) < 110_000


def test_ranks_agree_through_a_store_of_torch_distributed(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 20))
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=30))
    stores = [dist.PrefixStore("attempt/1", store) for store in (server, client)]
    spec = job(tmp_path / "events", batch_rows=5)
    sources = [FileSource(spec, rank=rank, world_size=2, store=stores[rank]) for rank in (1, 0)][::-1]
    try:
        assert flat(train(sources)) == [list(range(10)), list(range(10, 20))]
    finally:
        for source in sources:
            source.close()


def test_a_step_larger_than_the_byte_limit_is_still_delivered(events: Path) -> None:
    with ranks(job(events, batch_rows=80), options=FileSourceOptions(limit_bytes=1)) as (source,):
        batches = step([source])
    assert batches is not None
    assert batches[0].num_rows == 80
