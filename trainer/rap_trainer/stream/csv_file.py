"""Delimited text, one line one row, as Criteo publishes it: empty is missing, categories may be hexadecimal.

Blocks of whole lines are parsed with the declared types. A block with a value that is not of its
type is halved until the lines at fault stand alone, so every good line survives and each is judged
by the same parser. A line break inside quotes is not supported: such a record is two bad lines.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from rap_contract.names import expand
from rap_contract.source import Csv

from rap_trainer.stream.dead_letters import BadReason, BadRow
from rap_trainer.stream.file_format import FileProblem, FileReason, Piece, reading, require_rows
from rap_trainer.stream.rows import Int64s

BLOCK_BYTES = 4 << 20  # of text: 40 Criteo columns take about as much decoded
MAX_LINE_BYTES = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HUGE_INTEGER = re.compile(r"invalid value '[+-]?\d{10,}'")


@dataclass(frozen=True)
class _Parsed:
    table: pa.Table
    row_numbers: Int64s
    bad: tuple[BadRow, ...]


class CsvEvents:
    """An open text file; `types` gives the Arrow type of each column that is wanted. Raises FileProblem."""

    def __init__(self, path: Path, options: Csv, types: Mapping[str, pa.DataType]) -> None:
        self._path, self._options, self._types = path, options, types
        with reading(path):
            if path.stat().st_size == 0:
                raise FileProblem(FileReason.EMPTY, f"{path}: the file has 0 bytes", growing=True)
            first = next(self._blocks(skip_header=False), b"")
        if b"\0" in first:
            raise FileProblem(FileReason.FOREIGN, f"{path}: not text (it has NUL bytes); hint: move it elsewhere")
        self._names = self._column_names(first)
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
            num_rows = _num_lines(block)
            if row + num_rows > first_row:
                if row < first_row:
                    block = _without_lines(block, first_row - row)
                    row, num_rows = first_row, row + num_rows - first_row
                yield self._piece(block, columns, row, num_rows)
            row += num_rows
        require_rows(self._path, row, first_row)

    def close(self) -> None:
        """Nothing stays open between blocks."""

    def _piece(self, block: bytes, columns: list[str], row: int, num_rows: int) -> Piece:
        parts = list(self._parse(block, columns, row))
        table = pa.concat_tables([part.table for part in parts])
        bad = tuple(bad_row for part in parts for bad_row in part.bad)
        return Piece(
            first_row=row,
            num_rows=num_rows,
            batch=table.combine_chunks().to_batches()[0] if table.num_rows else _empty_batch(table.schema),
            row_numbers=np.concatenate([part.row_numbers for part in parts]) if bad else None,
            bad=bad,
        )

    def _parse(self, block: bytes, columns: list[str], row: int) -> Iterator[_Parsed]:
        num_lines = _num_lines(block)
        invalid: list[pc.InvalidRow] = []

        def skip(invalid_row: pc.InvalidRow) -> str:
            invalid.append(invalid_row)
            return "skip"

        message = "a line break inside quotes"
        try:
            table = pc.read_csv(
                pa.BufferReader(block),
                read_options=pc.ReadOptions(use_threads=False, column_names=self._names, block_size=len(block) + 1),
                parse_options=pc.ParseOptions(
                    delimiter=self._options.delimiter, ignore_empty_lines=False, invalid_row_handler=skip
                ),
                convert_options=pc.ConvertOptions(
                    column_types={name: self._types[name] for name in columns},
                    include_columns=columns,
                    null_values=[""],
                    strings_can_be_null=True,
                    check_utf8=False,
                ),
            )
        except pa.ArrowInvalid as error:
            table, message = None, str(error)
        if table is not None and table.num_rows + len(invalid) == num_lines:
            yield _parsed(table, invalid, row, num_lines)
        elif num_lines == 1:
            yield self._bad_line(block, columns, row, message)
        else:
            half = num_lines // 2
            rest = _without_lines(block, half)
            yield from self._parse(block[: len(block) - len(rest)], columns, row)
            yield from self._parse(rest, columns, row + half)

    def _bad_line(self, line: bytes, columns: list[str], row: int, message: str) -> _Parsed:
        reason = BadReason.OUT_OF_RANGE if _HUGE_INTEGER.search(message) else BadReason.UNPARSEABLE
        detail = re.sub(
            r"In CSV column #(\d+): (Row #\d+: )?", lambda m: f"column {self._names[int(m.group(1))]}: ", message
        )
        empty = pa.schema([(name, self._types[name]) for name in columns]).empty_table()
        bad = BadRow(row=row, reason=reason, detail=detail, payload=line.rstrip(b"\r\n"))
        return _Parsed(empty, np.zeros(0, np.int64), (bad,))

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
                    block, skip_header = _without_lines(block, 1), False
                if block:
                    yield block
        if rest and not skip_header:
            yield rest


def _parsed(table: pa.Table, invalid: list[pc.InvalidRow], row: int, num_lines: int) -> _Parsed:
    numbers = np.arange(row, row + num_lines)
    bad = tuple(
        BadRow(
            row=row + line.number - 1,
            reason=BadReason.FIELDS,
            detail=f"{line.actual_columns} fields where {line.expected_columns} are due",
            payload=line.text.encode("utf-8", "surrogateescape"),
        )
        for line in invalid
    )
    return _Parsed(table, np.delete(numbers, [b.row - row for b in bad]) if bad else numbers, bad)


def _num_lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _without_lines(block: bytes, count: int) -> bytes:
    """The block after its first `count` lines."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    return block[int(ends[count - 1]) + 1 :] if count <= len(ends) else b""


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
