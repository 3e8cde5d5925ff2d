"""Arrow IPC files, of the file and of the stream format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rap_trainer.stream.file_format import FileProblem, FileReason, Piece, reading, require_rows

MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_END_OF_STREAM = _CONTINUATION + b"\0\0\0\0"


class ArrowEvents:
    """An open Arrow IPC file. Raises FileProblem."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_stream = _check_ends(path)
        with reading(path):
            self._source = pa.OSFile(str(path))  # never a memory map: a file cut short under one kills the process
            self.schema: pa.Schema = self._open().schema

    def pieces(self, columns: list[str], first_row: int) -> Iterator[Piece]:
        """The named columns from `first_row` on; a record batch is a piece."""
        row = 0
        with reading(self._path):
            batches = self._batches([self.schema.get_field_index(name) for name in columns])
        while True:
            with reading(self._path):
                batch = next(batches, None)
                if batch is None:
                    break
                batch.validate(full=True)  # offsets of a damaged batch may point anywhere
            skipped = min(max(0, first_row - row), batch.num_rows)
            if skipped < batch.num_rows:
                yield Piece(first_row=row + skipped, num_rows=batch.num_rows - skipped, batch=batch.slice(skipped))
            row += batch.num_rows
        require_rows(self._path, row, first_row)

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    def _open(self, included: list[int] | None = None) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        self._source.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=included or [])
        opener = pa.ipc.open_stream if self._is_stream else pa.ipc.open_file
        return opener(self._source, options=options)

    def _batches(self, included: list[int]) -> Iterator[pa.RecordBatch]:
        reader = self._open(included)
        if self._is_stream:
            yield from reader
        else:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _check_ends(path: Path) -> bool:
    """Whether the file is of the stream format."""
    with reading(path), path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            raise FileProblem(
                FileReason.EMPTY, f"{path}: the file has 0 bytes; hint: write it again, or remove it", growing=True
            )
        file.seek(0)
        head = file.read(len(MAGIC))
        is_stream = head.startswith(_CONTINUATION)
        if not is_stream and head != MAGIC[: len(head)]:
            raise FileProblem(
                FileReason.FOREIGN, f"{path}: not an Arrow IPC file (begins with {head!r}); hint: move it elsewhere"
            )
        tail = _END_OF_STREAM if is_stream else MAGIC
        file.seek(max(0, size - len(tail)))
        if size < 2 * len(MAGIC) or file.read() != tail:
            raise FileProblem(
                FileReason.TRUNCATED,
                f"{path}: the end of the Arrow data is missing after {size} bytes; hint: write aside and rename",
                growing=True,
            )
        return is_stream
