"""Columns of many rows keep Arrow's memory, and what is decoded for nobody else is converted in place: the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rap_contract.source import EventTime
from rap_contract.types import ValueType
from rap_trainer.batch import RawBatch
from rap_trainer.stream import convert, parquet_file
from rap_trainer.stream.decode import Declared, Decoded, Decoder
from rap_trainer.stream.kept_memory import KEPT
from rap_trainer.stream.parquet_file import ParquetEvents
from rap_trainer.stream.rows import Span, batch_of
from stream.file_jobs import job, ranks, step, table, write

ROWS = 60
TYPES = {
    "label": "int32",
    "count": "float32",
    "id": "int64",
    "unsigned": "int64",
    "exact": "float64",
    "narrow": "int64",
    "flag": "float32",
    "nothing": "int64",
    "tags": "list<int64>",
    "weights": "list<float32>",
    "single": "list<int64>",
}


def numbers(every: int) -> list[int | None]:
    return [None if row % every == 0 else row for row in range(ROWS)]


def lists(every: int) -> list[list[int | None] | None]:
    return [None if row % every == 0 else [row, None, row + 1][: row % 4] for row in range(ROWS)]


def batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "label": pa.array([row % 2 for row in range(ROWS)], pa.int32()),
            "count": pa.array(numbers(3), pa.int32()),
            "id": pa.array(numbers(4), pa.int64()),
            "unsigned": pa.array(numbers(5), pa.uint64()),
            "exact": pa.array(numbers(6), pa.int64()),
            "narrow": pa.array(numbers(7), pa.int16()),
            "flag": pa.array([row % 3 == 0 for row in range(ROWS)]),
            "nothing": pa.nulls(ROWS),
            "tags": pa.array(lists(5), pa.list_(pa.int64())),
            "weights": pa.array(lists(100), pa.list_(pa.int32())),
            "single": pa.array(range(ROWS), pa.int64()),
        }
    )


def decoded(rows: pa.RecordBatch, *, owned: bool, event_time: EventTime | None = None) -> Decoded:
    declared = Declared(
        columns={name: ValueType.parse(text) for name, text in TYPES.items()},
        label="label",
        event_time=event_time or EventTime(),
    )
    row_ids = np.arange(rows.num_rows)
    return Decoder(declared, rows.schema, "here").decode(rows, row_ids=row_ids, event_time_s=1.5, owned=owned)


def contents(raw: RawBatch) -> dict[str, Any]:
    """Every tensor as a list, and its type."""
    found: dict[str, Any] = {"row_ids": raw.row_ids_B.tolist(), "times": raw.event_times_s_B.tolist()}
    for name, column in raw.columns.items():
        nulls = [False] * column.values_N.numel() if column.nulls_N is None else column.nulls_N.tolist()
        lengths = None if column.lengths_B is None else column.lengths_B.tolist()
        found[name] = (column.values_N.dtype, column.values_N.tolist(), nulls, lengths)
    return found


def batches(found: Decoded) -> list[dict[str, Any]]:
    """One that is a view, and one over two chunks."""
    views = batch_of([Span(found.rows, 3, found.rows.num_rows)], 1)
    joined = batch_of([Span(found.rows, 7, found.rows.num_rows), Span(found.rows, 0, 5)], 1)
    return [contents(views), contents(joined)]


@pytest.mark.parametrize("first", [0, 5], ids=["whole", "from the middle of a byte of null flags"])
@pytest.mark.parametrize("owned", [False, True], ids=["shared", "written over"])
def test_arrows_memory_gives_the_values_that_copies_give(
    monkeypatch: pytest.MonkeyPatch, owned: bool, first: int
) -> None:
    copies = decoded(batch().slice(first), owned=False)
    assert copies.rows.blocks
    monkeypatch.setattr(convert, "SHARED_ROWS", 1)
    kept = decoded(batch().slice(first), owned=owned)
    in_matrices = {name for block in kept.rows.blocks for name in block.names}
    assert in_matrices == {"narrow", "flag", "nothing"} | (set() if owned else {"count", "id", "unsigned", "exact"})
    assert batches(kept) == batches(copies)


def test_memory_that_somebody_else_may_look_at_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SHARED_ROWS", 1)
    rows = batch()
    decoded(rows, owned=False)
    assert rows.equals(batch())


def test_bad_rows_are_left_out_of_memory_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch().set_column(0, "label", pa.array([7 if row == 11 else row % 2 for row in range(ROWS)], pa.int32()))
    copies = decoded(rows, owned=False)
    monkeypatch.setattr(convert, "SHARED_ROWS", 1)
    kept = decoded(rows, owned=True)
    assert [bad.row for bad in kept.bad] == [11]
    assert kept.bad == copies.bad
    assert batches(kept) == batches(copies)


def test_an_event_time_is_read_before_its_column_becomes_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SHARED_ROWS", 1)
    times = decoded(batch(), owned=True, event_time=EventTime(column="exact", unit="s")).rows.event_times_s_R
    np.testing.assert_array_equal(times, [np.nan if row is None else row for row in numbers(6)])


def test_columns_for_a_gpu_that_copies_from_pinned_memory_stand_in_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SHARED_ROWS", 1)
    monkeypatch.setattr(KEPT, "pinned", True)
    held = {name for block in decoded(batch(), owned=True).rows.blocks for name in block.names}
    assert held == set(TYPES) - {"tags", "weights"}


def test_pieces_over_row_groups_are_about_equal_and_hold_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_file, "MIN_PIECE_ROWS", 25)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 1)
    pq.write_table(pa.Table.from_batches([batch()]), tmp_path / "a.parquet", row_group_size=17)
    file = ParquetEvents(tmp_path / "a.parquet")
    wanted = ["tags", "label", "id"]
    pieces = list(file.pieces(wanted, 20))
    file.close()
    # the row group of row 20 begins at 17, and two equal pieces there
    assert [(piece.first_row, piece.num_rows) for piece in pieces] == [(20, 19), (39, 21)]
    rows = [row for piece in pieces for row in piece.batch.select(wanted).to_pylist()]
    assert rows == batch().select(wanted).slice(20).to_pylist()


@pytest.mark.parametrize("ranks_per_node", [1, 2], ids=["each rank decodes", "one decodes for both"])
def test_ranks_train_the_same_values_from_arrows_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks_per_node: int
) -> None:
    for number in range(3):
        write(tmp_path / "events", f"{number}.parquet", table(100 * number, 100), row_group_size=40)
    monkeypatch.setattr(parquet_file, "MIN_PIECE_ROWS", 30)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 1)

    def trained() -> list[list[dict[str, Any]]]:
        """By step and rank; batches of 2 x 16 rows over pieces of 25."""
        with ranks(job(tmp_path / "events", batch_rows=16), 2, ranks_per_node=ranks_per_node) as sources:
            return [[contents(batch) for batch in batches] for batches in iter(lambda: step(sources), None)]

    copies = trained()
    monkeypatch.setattr(convert, "SHARED_ROWS", 1)
    assert trained() == copies
    assert sum(len(rank["row_ids"]) for batches in copies for rank in batches) == 300
