"""Files that cannot be read are put aside by name and reason; the others go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from rap_trainer.stream.discovery import FINISHED
from rap_trainer.stream.source import SchemaMismatch, SourceError
from stream.file_jobs import flat, job, ranks, step, table, train, write


def arrow_file(path: Path, rows: pa.Table, *, stream: bool = False, batch_rows: int = 10) -> Path:
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
    return path


def truncated(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def rows_of(directory: Path, world_size: int = 1, **files: Any) -> tuple[list[int], dict[str, int]]:
    with ranks(job(directory, batch_rows=5, **files), world_size) as sources:
        rows = [row for one in flat(train(sources)) for row in one]
        counted, *others = [source.counts().quarantined_files for source in sources]
    assert not any(others)  # the first rank counts for all
    return rows, dict(counted)


def make_parquet(directory: Path, kind: str) -> None:
    path = directory / "b.parquet"
    write(directory, "b.parquet", table(100, 1000), row_group_size=100)
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        truncated(path, 0.9)
    elif kind == "foreign":
        path.write_text("label,row\n1,2\n")
    elif kind == "corrupt":
        content = bytearray(path.read_bytes())
        content[-200:-8] = b"\x5a" * 192
        path.write_bytes(content)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("kind", ["empty", "truncated", "foreign", "corrupt"])
def test_a_broken_parquet_file_is_put_aside_and_the_others_are_read(
    tmp_path: Path, kind: str, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 10))
    make_parquet(directory, kind)
    write(directory, "c.parquet", table(10, 10))
    with caplog.at_level(logging.WARNING):
        rows, quarantined = rows_of(directory, world_size)
    assert rows == list(range(20))
    assert quarantined == {kind: 1}
    assert str(directory / "b.parquet") in caplog.text
    assert "hint:" in caplog.text or kind == "empty"


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_damage_inside_a_parquet_file_ends_that_file_there_for_all_ranks(tmp_path: Path, ranks_per_node: int) -> None:
    directory = tmp_path / "events"
    path = write(directory, "a.parquet", table(0, 1000), row_group_size=250)
    offset = pq.read_metadata(path).row_group(2).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 40] = b"\xff" * 40
    path.write_bytes(content)
    write(directory, "b.parquet", table(1000, 20))
    with ranks(job(directory, batch_rows=10), 2, ranks_per_node=ranks_per_node) as sources:
        rows = [row for one in flat(train(sources)) for row in one]
        positions = sources[0].positions()
        counts = [dict(source.counts().quarantined_files) for source in sources]
    assert counts == [{"corrupt": 1}, {}]
    assert rows[-20:] == list(range(1000, 1020))
    assert rows[:-20] == list(range(len(rows) - 20))
    assert positions["a.parquet"].offset == FINISHED


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_arrow_files_are_read_and_resumed_within_a_record_batch(tmp_path: Path, stream: bool) -> None:
    directory = tmp_path / "events"
    directory.mkdir()
    arrow_file(directory / "a.arrow", table(0, 35), stream=stream)
    arrow_file(directory / "b.arrow", table(35, 30), stream=stream)
    spec = job(directory, batch_rows=8, format="arrow")
    with ranks(spec) as sources:
        rows = flat(train(sources, max_steps=3))
        positions = sources[0].positions()
    with ranks(spec, start=positions) as sources:
        rows += flat(train(sources))
    assert [row for one in rows for row in one] == list(range(65))


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("kind", ["empty", "truncated", "foreign"])
def test_a_broken_arrow_file_is_put_aside(tmp_path: Path, kind: str, stream: bool) -> None:
    directory = tmp_path / "events"
    directory.mkdir()
    path = arrow_file(directory / "a.arrow", table(100, 100), stream=stream)
    if kind == "truncated":
        truncated(path, 0.7)
    else:
        path.write_bytes(b"" if kind == "empty" else b"PAR1, or anything else")
    arrow_file(directory / "b.arrow", table(0, 20), stream=stream)
    assert rows_of(directory, format="arrow") == (list(range(20)), {kind: 1})


def test_arrow_content_that_points_outside_of_itself_is_put_aside(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    directory.mkdir()
    path = arrow_file(directory / "a.arrow", table(100, 200), batch_rows=200)
    content = path.read_bytes()
    offsets = table(100, 200).column("ids").combine_chunks().offsets.to_numpy().tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, b"\x7f" * len(offsets)))
    arrow_file(directory / "b.arrow", table(0, 20))
    assert rows_of(directory, format="arrow") == (list(range(20)), {"corrupt": 1})


@pytest.mark.parametrize("kind", ["empty", "truncated", "foreign"])
def test_a_single_broken_file_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    make_parquet(tmp_path, kind)
    path = tmp_path / "b.parquet"
    with ranks(job(path)) as sources, pytest.raises(SourceError) as failed:
        train(sources)
    assert str(path) in str(failed.value)


def test_a_directory_of_broken_files_only_is_an_error_that_lists_them(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    directory.mkdir()
    (directory / "a.parquet").write_bytes(b"")
    (directory / "notes.txt").write_text("hello there")
    with ranks(job(directory), 2) as sources, pytest.raises(SourceError) as failed:
        train(sources)
    message = str(failed.value)
    assert "not one file can be read" in message
    assert "a.parquet: the file has 0 bytes" in message
    assert "notes.txt: not a Parquet file" in message


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda path: path.mkdir(), "no files"), (lambda path: None, "No such file or directory")],
    ids=["empty directory", "missing path"],
)
def test_nothing_to_read_is_an_error_with_a_hint(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    make(tmp_path / "events")
    with ranks(job(tmp_path / "events"), 2) as sources:
        for source in sources:
            with pytest.raises(SourceError) as failed:
                train([source])
            assert message in str(failed.value)
            assert "hint:" in str(failed.value)


def test_a_missing_directory_is_an_error_when_following_too(tmp_path: Path) -> None:
    with ranks(job(tmp_path / "events", follow=True)) as sources, pytest.raises(SourceError, match="No such file"):
        train(sources)


def test_a_file_without_read_permission_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 10))
    write(directory, "b.parquet", table(10, 10))
    allowed = Path.open

    def denied(path: Path, *arguments: object) -> object:  # root may read anything, so the refusal is played
        if path.name == "a.parquet":
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path, *arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", denied)
    assert rows_of(directory) == (list(range(10, 20)), {"permission": 1})


def test_a_file_with_another_schema_stops_the_job_after_the_rows_before_it(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 10))
    write(directory, "b.parquet", table(10, 10).drop_columns(["ids"]))
    with ranks(job(directory, batch_rows=5), 2) as sources:
        assert flat(train(sources, max_steps=1)) == [list(range(10))]
        with pytest.raises(SchemaMismatch, match=r"b.parquet does not fit the job:\n  column ids .* is missing"):
            step(sources)
        assert sources[0].positions()["a.parquet"].offset == FINISHED


def test_a_file_that_changes_after_it_was_catalogued_stops_the_job(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 10))
    with ranks(job(directory, batch_rows=5)) as sources:
        train(sources, max_steps=1)
        positions = sources[0].positions()
    (directory / "a.parquet").unlink()
    with ranks(job(directory, batch_rows=5), start=positions) as sources, pytest.raises(SourceError) as failed:
        train(sources)
    assert "a.parquet: the checkpoint wants row 5 on" in str(failed.value)


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv"])
def test_a_file_that_became_shorter_than_the_checkpoint_stops_the_job(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "events" / f"a.{format_}"

    def rewrite(num_rows: int) -> None:
        rows = table(0, num_rows).drop_columns(["ids"])
        if format_ == "parquet":
            write(path.parent, path.name, rows)
        elif format_ == "arrow":
            arrow_file(path, rows)
        else:
            pacsv.write_csv(rows, path)

    path.parent.mkdir()
    rewrite(30)
    spec = job(path.parent, columns={"label": "int32", "row": "int64"}, batch_rows=20, format=format_)
    with ranks(spec) as sources:
        train(sources, max_steps=1)
        positions = sources[0].positions()
    rewrite(15)
    with ranks(spec, start=positions) as sources, pytest.raises(SourceError, match=r"15 rows, .* from row 20"):
        train(sources)


def test_files_without_rows_are_no_problem(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    write(directory, "a.parquet", table(0, 0))
    write(directory, "b.parquet", table(0, 5))
    write(directory, "c.parquet", table(0, 0))
    with ranks(job(directory)) as sources:
        assert flat(train(sources)) == [list(range(5))]
        assert {position.offset for position in sources[0].positions().values()} == {FINISHED}
