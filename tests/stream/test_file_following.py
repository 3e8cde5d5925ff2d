"""A directory that grows: every file once, in a kept order, none half-read, until `_END`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from rap_contract.source import Csv
from rap_trainer.stream import file_reader
from rap_trainer.stream.catalogue import CatalogueLog, Kind, LocalStore, Record
from rap_trainer.stream.decode import Declared
from rap_trainer.stream.discovery import FINISHED, Discovery
from rap_trainer.stream.files import FileSource
from rap_trainer.stream.open_file import open_file
from rap_trainer.stream.source import SourceError
from stream.file_jobs import DEADLINE_S, flat, job, ranks, step, table, train, write


def discovery(path: Path, *, follow: bool = True, settle_s: float = 5.0, whole_on_probe: bool = True) -> Discovery:
    def probe(file: Path) -> None:
        open_file(file, "parquet" if whole_on_probe else "csv", Csv(), Declared(columns={})).close()

    return Discovery(path, probe, follow=follow, start={}, whole_on_probe=whole_on_probe, settle_s=settle_s)


def names(records: list[Record], kind: Kind = Kind.FILE) -> list[str]:
    return [record.name for record in records if record.kind is kind]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.001)


def test_files_are_catalogued_by_name_and_later_ones_are_appended(tmp_path: Path) -> None:
    found = discovery(tmp_path)
    for name in ("b", "c"):
        write(tmp_path, f"{name}.parquet", table(0, 1))
    first = found.scan(0.0)
    write(tmp_path, "a.parquet", table(0, 1))
    second = found.scan(1.0)
    assert names(first) == ["b.parquet", "c.parquet"]
    assert names(second) == ["a.parquet"]
    assert [record.order for record in [*first, *second]] == [0, 1, 2]
    assert found.scan(2.0) == []


def test_hidden_and_temporary_names_are_no_events(tmp_path: Path) -> None:
    for name in (
        ".a.parquet",
        "_a.parquet",
        "a.parquet.tmp",
        "_temporary/b.parquet",
        ".git/b.parquet",
        "day=1/b.parquet",
    ):
        write((tmp_path / name).parent, "x", table(0, 1)).rename(tmp_path / name)
    assert names(discovery(tmp_path).scan(0.0)) == ["day=1/b.parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1 half of a fi"], ids=["empty", "half-written"])
def test_a_half_written_file_is_waited_for_while_it_grows_and_given_up_when_it_stands_still(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    found = discovery(tmp_path)
    assert found.scan(0.0) == []
    assert found.scan(4.9) == []
    path.write_bytes(b"PAR1" + content + b"more")
    assert found.scan(5.1) == []
    assert found.scan(10.0) == []
    (record,) = found.scan(10.2)
    assert (record.kind, record.reason) == (Kind.QUARANTINED, "truncated")
    assert found.scan(11.0) == []


def test_a_file_that_is_completed_in_time_is_read(tmp_path: Path) -> None:
    whole = write(tmp_path, "x", table(0, 3))
    content = whole.read_bytes()
    whole.unlink()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    found = discovery(tmp_path)
    assert found.scan(0.0) == []
    (tmp_path / "a.parquet").write_bytes(content)
    assert names(found.scan(1.0)) == ["a.parquet"]


def test_text_that_may_be_half_written_waits_until_it_stands_still(tmp_path: Path) -> None:
    found = discovery(tmp_path, whole_on_probe=False, settle_s=1.0)
    (tmp_path / "a.csv").write_text("label\n1\n")
    assert found.scan(0.0) == []
    (tmp_path / "a.csv").write_text("label\n1\n0\n")
    assert found.scan(0.9) == []
    assert found.scan(1.5) == []
    assert names(found.scan(2.0)) == ["a.csv"]


def test_the_end_marker_ends_only_when_nothing_is_half_written(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", table(0, 1))
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    (tmp_path / "_END").touch()
    found = discovery(tmp_path)
    assert [record.kind for record in found.scan(0.0)] == [Kind.FILE]
    assert [record.kind for record in found.scan(6.0)] == [Kind.QUARANTINED, Kind.END]


def test_without_following_a_half_written_file_is_put_aside_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", table(0, 1))
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    kinds = [record.kind for record in discovery(tmp_path, follow=False).scan(0.0)]
    assert kinds == [Kind.FILE, Kind.QUARANTINED, Kind.END]


def test_the_log_gives_back_what_was_appended_and_none_beyond(tmp_path: Path) -> None:
    store = LocalStore()
    record = Record(kind=Kind.FILE, name="ä b.parquet", order=3, first_row=7, size_bytes=9, modified_s=1.25)
    CatalogueLog(store).append(record)
    reader = CatalogueLog(store)
    assert reader.get(0) == record
    assert reader.get(1) is None


@pytest.mark.parametrize("world_size", [1, 2])
def test_files_that_appear_while_training_are_trained_and_the_end_marker_ends_it(
    tmp_path: Path, world_size: int
) -> None:
    directory = tmp_path / "events"
    write(directory, "00.parquet", table(0, 10))
    with ranks(job(directory, batch_rows=10 // world_size, follow=True), world_size) as sources:
        rows: list[int] = []
        for number in range(5):
            rows += [row for one in flat(train(sources, max_steps=1)) for row in one]
            assert not any(source.offer().ended for source in sources)
            write(directory, f"{number + 1:02d}.parquet", table(10 * number + 10, 10))
        (directory / "_END").touch()
        rows += [row for one in flat(train(sources)) for row in one]
    assert rows == list(range(60))


def test_a_partial_step_is_taken_from_a_quiet_directory_when_flushed(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 7))
    with ranks(job(directory, batch_rows=4, follow=True), 2) as sources:
        wait_for(lambda: all(source.offer().rows == 7 for source in sources))
        ready = [source.offer().rows for source in sources]
        assert sources[0].shares(ready, flush=False) is None
        shares = sources[0].shares(ready, flush=True)
        assert shares == (3, 4)
        assert [source.take(shares).num_rows for source in sources] == [3, 4]
        (directory / "_END").touch()
        assert step(sources) is None


def test_a_resume_keeps_the_order_of_files_that_were_announced(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "m.parquet", table(0, 10))
    spec = job(directory, batch_rows=5, follow=True)
    with ranks(spec) as sources:
        rows = flat(train(sources, max_steps=1))
        write(directory, "z.parquet", table(10, 10))
        wait_for(lambda: "z.parquet" in sources[0].positions())
        write(directory, "a.parquet", table(20, 10))
        wait_for(lambda: "a.parquet" in sources[0].positions())
        positions = sources[0].positions()
    (directory / "_END").touch()
    with ranks(spec, start=positions) as sources:
        rows += flat(train(sources))
    assert [row for one in rows for row in one] == list(range(30))


def test_finished_files_may_be_deleted_and_are_then_forgotten(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 10))
    spec = job(directory, batch_rows=5, follow=True)
    with ranks(spec) as sources:
        train(sources, max_steps=2)
        assert sources[0].positions()["a.parquet"].offset == FINISHED
        (directory / "a.parquet").unlink()
        write(directory, "b.parquet", table(10, 10))
        rows = flat(train(sources, max_steps=1))
        wait_for(lambda: list(sources[0].positions()) == ["b.parquet"])
        positions = sources[0].positions()
    (directory / "_END").touch()
    with ranks(spec, start=positions) as sources:
        rows += flat(train(sources))
    assert [row for one in rows for row in one] == list(range(10, 20))


def test_finished_files_are_not_read_again_after_a_resume(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 10))
    with ranks(job(directory, batch_rows=5)) as sources:
        train(sources)
        positions = sources[0].positions()
    with ranks(job(directory, batch_rows=5), start=positions) as sources:
        assert train(sources) == []


@pytest.mark.parametrize("state", ["waiting for files", "full of rows"])
def test_a_source_closes_at_once_whatever_its_thread_does(tmp_path: Path, state: str) -> None:
    directory = tmp_path / "events"
    directory.mkdir()
    if state == "full of rows":
        for number in range(4):
            write(directory, f"{number}.parquet", table(1000 * number, 1000))
    before = threading.active_count()
    with ranks(job(directory, batch_rows=5, follow=True)) as (source,):
        if state == "full of rows":
            wait_for(lambda: source.offer().rows == 5)
        begin_s = time.monotonic()
        source.close()
        source.close()
        assert time.monotonic() - begin_s < 10  # a pause lasts up to 0.5 s; a hang would be for ever
        assert threading.active_count() == before


def test_all_ranks_agree_on_what_the_first_one_found(tmp_path: Path) -> None:
    """The others never list the directory: a file that only they could see first changes nothing."""
    directory = tmp_path / "events"
    write(directory, "b.parquet", table(0, 8))
    store = LocalStore()
    spec = job(directory, batch_rows=4, follow=True)
    second = FileSource(spec, rank=1, world_size=2, store=store)
    try:
        first = FileSource(spec, rank=0, world_size=2, store=store)
        try:
            rows = flat(train([first, second], max_steps=1))
            write(directory, "a.parquet", table(8, 8))
            (directory / "_END").touch()
            rows += flat(train([first, second]))
        finally:
            first.close()
    finally:
        second.close()
    assert rows == [list(range(8)), list(range(8, 16))]


def test_a_rank_that_sees_a_new_file_late_waits_for_it(tmp_path: Path) -> None:
    """As over NFS: the second rank reads another copy of the directory, in which the file comes later."""
    first_view, second_view = tmp_path / "first", tmp_path / "second"
    second_view.mkdir()
    path = write(first_view, "a.parquet", table(0, 10))
    store = LocalStore()
    first = FileSource(job(first_view, batch_rows=5), rank=0, world_size=2, store=store)
    second = FileSource(job(second_view, batch_rows=5), rank=1, world_size=2, store=store)
    try:
        wait_for(lambda: first.offer().rows == 10 and "a.parquet" in second.positions())
        assert second.offer().rows == 0
        (second_view / "a.parquet").write_bytes(path.read_bytes())
        assert flat(train([first, second])) == [list(range(10))]
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("change", ["removed", "rewritten"])
def test_a_file_that_never_looks_as_the_first_rank_saw_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(file_reader, "SHARED_VIEW_S", 0.0)
    directory = tmp_path / "events"
    path = write(directory, "a.parquet", table(0, 10))
    store = LocalStore()
    first = FileSource(job(directory, batch_rows=5), rank=0, world_size=2, store=store)
    try:
        wait_for(lambda: first.offer().rows == 10)
        path.unlink()
        if change == "rewritten":
            write(directory, "a.parquet", table(0, 999))
        second = FileSource(job(directory, batch_rows=5), rank=1, world_size=2, store=store)
        with pytest.raises(SourceError, match=r"a.parquet: (catalogued, but here|grew or shrank).* hint:"):
            train([first, second])
        second.close()
    finally:
        first.close()


def test_event_time_is_the_files_when_events_carry_none(tmp_path: Path) -> None:
    path = write(tmp_path / "events", "a.parquet", table(0, 2))
    with ranks(job(tmp_path / "events")) as sources:
        batches = step(sources)
    assert batches is not None
    assert batches[0].event_times_s_B.tolist() == [path.stat().st_mtime] * 2


def test_event_time_comes_from_its_column(tmp_path: Path) -> None:
    rows = table(0, 3).append_column("at", pa.array([1500, None, 2500], pa.int64()))
    write(tmp_path / "events", "a.parquet", rows)
    with ranks(job(tmp_path / "events", eventTime={"column": "at", "unit": "ms"})) as sources:
        batches = step(sources)
    assert batches is not None
    seconds = batches[0].event_times_s_B.tolist()
    assert (seconds[0], seconds[2]) == (1.5, 2.5)
    assert seconds[1] != seconds[1]
