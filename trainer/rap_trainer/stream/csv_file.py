"""Delimited text, one line one row, as Criteo publishes it: empty is missing, categories may be hexadecimal.

It is cut into blocks of whole lines; `csv_block.py` parses them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from rap_contract.names import expand
from rap_contract.source import Csv

from rap_trainer.stream.csv_block import CsvBlocks, num_lines, without_lines
from rap_trainer.stream.file_format import FileProblem, FileReason, Piece, reading, require_rows

BLOCK_BYTES = 4 << 20  # of text: 40 Criteo columns take about as much decoded
MAX_LINE_BYTES = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvEvents:
    """An open text file; `types` gives the Arrow type of each column that is wanted. Raises FileProblem."""

    def __init__(self, path: Path, options: Csv, types: Mapping[str, pa.DataType]) -> None:
        self._path, self._options = path, options
        with reading(path):
            if path.stat().st_size == 0:
                raise FileProblem(
                    FileReason.EMPTY, f"{path}: the file has 0 bytes; hint: write it again, or remove it", growing=True
                )
            first = next(self._blocks(skip_header=False), b"")
        if b"\0" in first:
            raise FileProblem(FileReason.FOREIGN, f"{path}: not text (it has NUL bytes); hint: move it elsewhere")
        self._names = self._column_names(first)
        self._parser = CsvBlocks(self._names, options.delimiter, types)
        self.schema = pa.schema([(name, types.get(name, pa.string())) for name in self._names])

    def pieces(self, columns: list[str], first_row: int) -> Iterator[Piece]:
        """The named columns from `first_row` on; lines before it are counted, not parsed."""
        row = 0
        blocks = self._blocks(skip_header=self._options.header)
        while True:
            with reading(self._path):
                block = next(blocks, None)
            if block is None:
                break
            num_rows = num_lines(block)
            if row + num_rows > first_row:
                if row < first_row:
                    block = without_lines(block, first_row - row)
                    row, num_rows = first_row, row + num_rows - first_row
                yield self._parser.piece(block, columns, row, num_rows)
            row += num_rows
        require_rows(self._path, row, first_row)

    def close(self) -> None:
        """Nothing stays open between blocks."""

    def _column_names(self, first_block: bytes) -> list[str]:
        line = first_block.split(b"\n", 1)[0].rstrip(b"\r").decode("utf-8", "replace")
        fields = next(csv.reader([line], delimiter=self._options.delimiter), [])
        if self._options.column_names is None:
            return fields if self._options.header else [f"f{i}" for i in range(len(fields))]
        names = [name for pattern in self._options.column_names for name in expand(pattern)]
        if self._options.header and len(names) != len(fields):
            raise FileProblem(
                FileReason.FOREIGN,
                f"{self._path}: the header has {len(fields)} columns, csv.columnNames {len(names)}; "
                "hint: csv.delimiter may differ",
            )
        return names

    def _blocks(self, *, skip_header: bool) -> Iterator[bytes]:
        """Whole lines, about BLOCK_BYTES at a time."""
        with pa.input_stream(str(self._path)) as stream:
            rest = stream.read(len(_BYTE_ORDER_MARK)).removeprefix(_BYTE_ORDER_MARK)
            while data := stream.read(BLOCK_BYTES):
                rest += data
                end = rest.rfind(b"\n") + 1
                if end == 0:
                    if len(rest) > MAX_LINE_BYTES:
                        raise FileProblem(
                            FileReason.FOREIGN, f"{self._path}: a line is longer than {MAX_LINE_BYTES >> 20} MiB"
                        )
                    continue
                block, rest = rest[:end], rest[end:]
                if skip_header:
                    block, skip_header = without_lines(block, 1), False
                if block:
                    yield block
        if rest and not skip_header:
            yield rest
