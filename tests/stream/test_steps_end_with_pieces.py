"""Pieces of Parquet files end where steps do, so that a step is cut out of one piece and not copied from two."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.stream import file_reader, parquet_file
from rap_trainer.stream.parquet_file import ParquetEvents
from rap_trainer.stream.rows import Rows
from rap_trainer.stream.step_ends import StepEnds
from stream.file_jobs import job, ranks, step, table, write


@given(
    step_rows=st.integers(1, 500),
    passed=st.lists(st.integers(-50, 2000), max_size=5),
    num_rows=st.integers(1, 2000),
)
def test_what_is_read_ends_a_step_or_is_what_was_asked_for(step_rows: int, passed: list[int], num_rows: int) -> None:
    ends = StepEnds(step_rows)
    for rows in passed:
        ends.passed(rows)
    near = ends.near(num_rows)
    assert near == num_rows or (sum(passed) + near) % step_rows == 0
    assert num_rows <= 2 * near
    assert 8 * near <= 9 * num_rows
    if 3 * step_rows <= num_rows:
        assert (sum(passed) + near) % step_rows == 0


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 rows."""
    monkeypatch.setattr(parquet_file, "MIN_PIECE_ROWS", 40)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 1)


@pytest.mark.usefixtures("small_pieces")
def test_a_file_is_read_in_pieces_of_whole_steps_from_where_a_checkpoint_goes_on(tmp_path: Path) -> None:
    ends = StepEnds(16)
    ends.passed(5)  # rows of a step that an earlier file has begun
    file = ParquetEvents(write(tmp_path / "events", "a.parquet", table(0, 150), row_group_size=70), ends)
    pieces, row = [], 7
    for piece in file.pieces(["row"], 7):
        ends.passed(piece.num_rows)
        assert piece.first_row == row
        assert piece.batch.column("row").to_pylist() == list(range(row, row + piece.num_rows))
        row += piece.num_rows
        pieces.append(row)
    file.close()
    assert row == 150
    assert len(pieces) > 3
    assert {(5 + end - 7) % 16 for end in pieces[:-1]} == {0}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("world_size", [1, 2])
def test_steps_are_copied_from_two_pieces_only_where_files_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    for number in range(4):
        write(tmp_path / "events", f"{number}.parquet", table(100 * number, 100))
    converted: list[Rows] = []
    decode = file_reader.decode_piece

    def noted(*args: object, **options: object) -> object:
        chunk = decode(*args, **options)  # type: ignore[arg-type]  # as it was called
        assert chunk.rows is not None
        converted.append(chunk.rows)
        return chunk

    monkeypatch.setattr(file_reader, "decode_piece", noted)
    with ranks(job(tmp_path / "events", batch_rows=16 // world_size), world_size) as sources:
        seen = [batch for batches in iter(lambda: step(sources), None) for batch in batches]
    rows = [row for batch in seen for row in batch.columns["row"].values_N.tolist()]
    assert sorted(rows) == list(range(400))
    ends = [int(piece.columns["row"].values[-1]) + 1 for piece in converted]
    inside = {end for end in ends if end % 100}
    assert len(inside) >= 8  # three pieces a file, or four
    assert {end % 16 for end in inside} == {0}


@pytest.mark.usefixtures("small_pieces")
def test_after_bad_rows_pieces_find_the_ends_of_steps_again(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 800, bad=[3, 4, 5]))
    with ranks(job(tmp_path / "events", batch_rows=16)) as (source,):
        reader = source._reader
        steps = iter(lambda: step([source]), None)
        rows = [row for (batch,) in steps for row in batch.columns["row"].values_N.tolist()]
        assert rows == [row for row in range(800) if row not in (3, 4, 5)]
        assert isinstance(reader, file_reader.FileReader)
        assert (len(rows) + reader._ends.near(160)) % 16 == 0
