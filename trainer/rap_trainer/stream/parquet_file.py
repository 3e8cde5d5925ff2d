"""Parquet files: projected, streamed within row groups, bounded in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rap_trainer.stream.file_format import PIECE_BYTES, FileProblem, FileReason, Piece, reading, require_rows
from rap_trainer.stream.step_ends import StepEnds

MAGIC = b"PAR1"
_FOOTER_BYTES = 12  # header magic, footer length, trailing magic: the least a file can have
MIN_PIECE_ROWS, MAX_PIECE_ROWS = 1024, 262_144
_STREAMED_GROUP_BYTES = 64 << 20  # row groups above this are read through buffered streams, not at once
_STREAM_BUFFER_BYTES = 1 << 20  # a column


class ParquetEvents:
    """An open Parquet file, in pieces that end where steps do. Raises FileProblem."""

    def __init__(self, path: Path, ends: StepEnds | None = None) -> None:
        self._path = path
        self._ends = ends or StepEnds()
        _check_ends(path)
        with reading(path):
            self._file = pq.ParquetFile(path, pre_buffer=False)
            metadata = self._file.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            self._group_rows = [group.num_rows for group in groups]
            if any(group.total_byte_size > _STREAMED_GROUP_BYTES for group in groups):
                self._file.close()
                self._file = pq.ParquetFile(path, metadata=metadata, pre_buffer=False, buffer_size=_STREAM_BUFFER_BYTES)
            self.schema: pa.Schema = self._file.schema_arrow
            self._row_bytes = max((_decoded_row_bytes(group) for group in groups[:8]), default=1.0)

    def pieces(self, columns: list[str], first_row: int) -> Iterator[Piece]:
        """The named columns from `first_row` on; row groups before it are not touched."""
        require_rows(self._path, sum(self._group_rows), first_row)
        groups: list[int] = []
        row = 0
        for number, group_rows in enumerate(self._group_rows):
            if row + group_rows > first_row or groups:
                groups.append(number)
            else:
                row += group_rows
        if not groups:
            return
        skipped, rows = first_row - row, sum(self._group_rows[number] for number in groups)
        batches = self._file.iter_batches(self._piece_rows(rows, skipped), row_groups=groups, columns=columns)
        while True:
            with reading(self._path):
                batch = next(batches, None)
            if batch is None:
                break
            kept = batch.slice(min(skipped, batch.num_rows))
            row, rows = row + batch.num_rows, rows - batch.num_rows
            skipped -= batch.num_rows - kept.num_rows
            if kept.num_rows:
                yield Piece(first_row=row - kept.num_rows, num_rows=kept.num_rows, batch=kept, owned=True)
            self._file.reader.set_batch_size(self._piece_rows(rows, skipped))  # Arrow looks at it before each batch

    def _piece_rows(self, rows: int, skipped: int) -> int:
        """Of the next piece, where so many rows are left, the first of which are read for nothing.

        Pieces are about equal: nothing is read while a small last one is converted.
        """
        most_rows = min(MAX_PIECE_ROWS, max(MIN_PIECE_ROWS, int(PIECE_BYTES / self._row_bytes)))
        num_pieces = max(1, math.ceil(rows / most_rows - 1 / 16))
        piece_rows = max(1, math.ceil(rows / num_pieces))
        if num_pieces == 1 or piece_rows <= skipped:
            return piece_rows
        return skipped + self._ends.near(piece_rows - skipped)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _decoded_row_bytes(group: pq.RowGroupMetaData) -> float:
    """About: values are 8 bytes each, encoded ones take less; text takes what it takes."""
    columns = [group.column(i) for i in range(group.num_columns)]
    num_bytes = sum(
        float(column.total_uncompressed_size if column.physical_type == "BYTE_ARRAY" else 8 * column.num_values)
        for column in columns
    )
    return max(1.0, num_bytes / max(1, int(group.num_rows)))


def _check_ends(path: Path) -> None:
    with reading(path), path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            raise FileProblem(
                FileReason.EMPTY, f"{path}: the file has 0 bytes; hint: write it again, or remove it", growing=True
            )
        file.seek(0)
        head = file.read(len(MAGIC))
        if head != MAGIC[: len(head)]:
            raise FileProblem(
                FileReason.FOREIGN, f"{path}: not a Parquet file (begins with {head!r}); hint: move it elsewhere"
            )
        file.seek(max(0, size - len(MAGIC)))
        if size < _FOOTER_BYTES or file.read() != MAGIC:
            raise FileProblem(
                FileReason.TRUNCATED,
                f"{path}: the Parquet footer is missing after {size} bytes; hint: write aside and rename",
                growing=True,
            )
