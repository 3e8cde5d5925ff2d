"""Ranks of a node train what one of them decodes: the same rows, decoded once, and no rank waits for one that is gone."""

from __future__ import annotations

import gc
import secrets
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from rap_trainer.batch import RawBatch
from rap_trainer.stream import node_sharing
from rap_trainer.stream.backlog import Chunk
from rap_trainer.stream.catalogue import LocalStore
from rap_trainer.stream.chunk_message import End, Message, read
from rap_trainer.stream.decode import Decoder
from rap_trainer.stream.files import FileSource, FileSourceOptions
from rap_trainer.stream.node_sharing import ChunkReceiver, ChunkSender, Sharing
from rap_trainer.stream.shared_blocks import BorrowedBlock, SharedBlocks
from rap_trainer.stream.source import SchemaMismatch, SourceError
from rap_trainer.world import PeerLost
from stream.file_jobs import flat, job, ranks, step, table, train, write


def assert_equal_batches(one: RawBatch, other: RawBatch) -> None:
    assert list(one.columns) == list(other.columns)
    for name, column in one.columns.items():
        for tensor, same in zip(vars(column).values(), vars(other.columns[name]).values(), strict=True):
            assert (tensor is None) == (same is None), name
            if tensor is not None:
                torch.testing.assert_close(tensor, same, rtol=0, atol=0, equal_nan=True)
    assert [(b.names, b.field) for b in one.blocks] == [(b.names, b.field) for b in other.blocks]
    torch.testing.assert_close(one.row_ids_B, other.row_ids_B, rtol=0, atol=0)
    torch.testing.assert_close(one.event_times_s_B, other.event_times_s_B, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("least_mapped_bytes", [0, 1 << 40], ids=["mapped", "copied"])
def test_shared_batches_are_those_of_a_rank_that_decodes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_mapped_bytes: int
) -> None:
    monkeypatch.setattr(node_sharing, "LEAST_MAPPED_BYTES", least_mapped_bytes)
    write(tmp_path / "events", "a.parquet", table(0, 700, bad=range(3, 700, 90)), row_group_size=200)
    write(tmp_path / "events", "b.parquet", table(700, 300).set_column(3, "ids", pa.array([[i] for i in range(300)])))
    spec = job(tmp_path / "events", batch_rows=32)
    with ranks(spec, 2) as alone, ranks(spec, 2, ranks_per_node=2) as together:
        while (expected := step(alone)) is not None:
            found = step(together)
            assert found is not None
            for one, other in zip(expected, found, strict=True):
                assert_equal_batches(one, other)
        assert step(together) is None


def test_each_row_is_decoded_once_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = Decoder.decode

    def counting(self: Decoder, batch: pa.RecordBatch, **rest: object) -> object:
        decoded.append(batch.num_rows)
        return decode(self, batch, **rest)  # type: ignore[arg-type]  # passed on as given

    monkeypatch.setattr(Decoder, "decode", counting)
    write(tmp_path / "events", "a.parquet", table(0, 60), row_group_size=20)
    with ranks(job(tmp_path / "events", batch_rows=5), 4, ranks_per_node=2) as sources:
        train(sources)
    assert sum(decoded) == 2 * 60  # two nodes


def test_a_file_that_does_not_fit_ends_every_rank_after_the_rows_before_it(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 20))
    write(tmp_path / "events", "b.parquet", table(20, 20).drop_columns("dense"))
    with ranks(job(tmp_path / "events", batch_rows=5), 2, ranks_per_node=2) as sources:
        assert flat(train(sources, max_steps=2)) == [list(range(10)), list(range(10, 20))]
        for source in sources:
            with pytest.raises(SchemaMismatch, match=r"b\.parquet does not fit the job:\n.*column dense"):
                while True:
                    source.offer()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_many_tiny_files_hold_no_descriptors(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path / "events", f"{number:03d}.parquet", table(number, 1))
    before = open_files()
    with ranks(job(tmp_path / "events", batch_rows=150), 2, ranks_per_node=2) as sources:
        batches = step(sources)
        assert batches is not None
        assert open_files() < before + 50


def source_of(spec_path: Path, sharing: Sharing, store: LocalStore) -> FileSource:
    return FileSource(
        job(spec_path, batch_rows=4, follow=True),
        rank=sharing.local_rank,
        world_size=sharing.local_size,
        store=store,
        options=FileSourceOptions(sharing=sharing),
    )


def places(size: int) -> list[Sharing]:
    address = f"test-files-{secrets.token_hex(8)}"
    return [Sharing(address=address, local_rank=rank, local_size=size) for rank in range(size)]


def until_rows(source: FileSource, rows: int) -> None:
    while (offer := source.offer()).rows < rows:
        assert not offer.ended
        threading.Event().wait(0.001)


@pytest.mark.parametrize("is_late", [False, True], ids=["shut", "shut-late"])
def test_a_rank_whose_first_one_is_gone_has_lost_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """And not seen the stream end: also where the first one's reader stops before its sockets are shut down."""
    if is_late:
        monkeypatch.setattr(ChunkSender, "stop", lambda self: None)
    write(tmp_path / "events", "a.parquet", table(0, 4))  # half a step
    store = LocalStore()
    leader, follower = (source_of(tmp_path / "events", place, store) for place in places(2))
    try:
        until_rows(follower, 4)
        leader.close()
        with pytest.raises(PeerLost, match="the first rank of this node gives no rows any more"):
            until_rows(follower, 8)
    finally:
        follower.close()


def test_a_first_rank_notices_with_the_next_rows_that_another_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 4))
    store = LocalStore()
    leader, follower = (source_of(tmp_path / "events", place, store) for place in places(2))
    try:
        until_rows(leader, 4)
        until_rows(follower, 4)
        follower.close()
        write(tmp_path / "events", "b.parquet", table(4, 1))
        with pytest.raises(PeerLost, match="a rank of this node takes no rows any more"):
            until_rows(leader, 8)
    finally:
        leader.close()


def test_where_memory_is_refused_the_first_rank_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("rap_trainer.stream.shared_blocks.os.memfd_create", refused)
    write(tmp_path / "events", "a.parquet", table(0, 4))
    with ranks(job(tmp_path / "events", batch_rows=5), 2, ranks_per_node=2) as (leader, follower):
        with pytest.raises(
            SourceError, match=r"bytes of rows that the ranks of a node share: Too many open files; hint: "
        ):
            until_rows(leader, 30)
        with pytest.raises(PeerLost):
            until_rows(follower, 30)


def test_sources_close_at_once_while_the_others_have_not_come(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 4))
    for place in places(2):
        source_of(tmp_path / "events", place, LocalStore()).close()


def test_a_message_comes_back_as_it_was_and_its_arrays_are_views() -> None:
    bare = Chunk(unit="a", order=1, first_row=2, num_rows=3, rows=None, kept_rows=np.array([2, 4]), bad=(), last=True)
    message = Message.of(bare)
    memory = np.zeros(message.num_bytes, np.uint8)
    message.write(memory)
    again = read(memory, message.num_parts)
    assert isinstance(again, Chunk)
    assert again.kept_rows is not None
    assert again.kept_rows.tolist() == [2, 4]
    assert np.shares_memory(again.kept_rows, memory)
    assert (again.unit, again.order, again.first_row, again.num_rows, again.last) == ("a", 1, 2, 3, True)
    end = Message.of(End(error=SchemaMismatch("why")))
    memory = np.zeros(end.num_bytes, np.uint8)
    end.write(memory)
    assert str(read(memory, end.num_parts).error) == "why"  # type: ignore[union-attr]  # an End


def test_a_block_is_used_again_when_every_reader_has_let_go_of_it_and_not_before() -> None:
    blocks = SharedBlocks(readers=2)
    block = blocks.lent(3_000_000)
    block.data[:5] = [1, 2, 3, 4, 5]
    views = [BorrowedBlock(block.file, reader=reader).data[:5] for reader in range(2)]
    assert [view.tolist() for view in views] == [[1, 2, 3, 4, 5]] * 2
    other = blocks.lent(3_000_000)
    assert other is not block
    del views[0]
    gc.collect()
    assert blocks.lent(3_000_000) not in (block, other)
    views.clear()
    gc.collect()
    assert blocks.lent(2_500_000) is block
    blocks.close()


def test_free_blocks_are_given_back_above_the_limit() -> None:
    blocks = SharedBlocks(readers=1, most_free_bytes=4 << 20)
    sizes = [1 << 20, 4 << 20, 16 << 20]
    for size in sizes:
        block = blocks.lent(size)
        del block
    for held in blocks._blocks:
        BorrowedBlock(held.file, reader=0)
    blocks.lent(64 << 20)
    assert sum(block.num_bytes for block in blocks._blocks if block.free) <= 4 << 20
    blocks.close()


def test_a_sender_waits_for_room_and_stop_wakes_it() -> None:
    first, second = places(2)
    sender, receiver = ChunkSender(first), ChunkReceiver(second)
    message = End()
    woken = threading.Event()

    def fill() -> None:
        sender.begin()
        try:
            while True:
                sender.send(message)
        except PeerLost:
            woken.set()

    thread = threading.Thread(target=fill)
    thread.start()
    assert receiver.receive() == message
    sender.stop()
    thread.join()
    assert woken.is_set()
    sender.close()
    receiver.close()
