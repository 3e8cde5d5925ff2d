"""Messages of lines: JSON lines, and delimited text. Lines of many messages are parsed together, judged one by one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from rap_trainer.stream.csv_block import CsvBlocks, num_lines, without_lines
from rap_trainer.stream.dead_letters import BadReason, BadRow
from rap_trainer.stream.file_format import Piece
from rap_trainer.stream.kafka.messages import Parsed, bad_message, registry_detail, registry_framed
from rap_trainer.stream.kafka.number_lines import NotOfThisShape, NumberLines
from rap_trainer.stream.kafka.settings import Text

JSON_BLOCK = 1 << 18  # bytes Arrow parses in one go: 5 % faster than a whole frame, 40 % than 64 KB (here, 2026-11)
COUNT_BYTES = 16 << 10  # from which numpy's own overhead is little (here, 2026-11)
POSITION_ROWS = 1000  # from which reading by position beats Arrow, at 40 columns (here, 2026-11)
SHAPELESS_BLOCKS = 16  # are left to Arrow after one that had to be: trying costs half of what Arrow takes
MAX_HEADERS = 1000  # remembered: more differ only where somebody sends rows as headers


class _Lines(NamedTuple):
    """A message as lines with an end each, or the reason why it is not."""

    header: bytes
    """The line that names the columns; without one empty."""
    body: bytes
    bad: BadRow | None = None


class TextMessages:
    """Implements Parser. `block` gives what parses lines below a header; it raises ValueError for a wrong header."""

    def __init__(self, *, has_header: bool, block: Callable[[bytes], Callable[[bytes, int], Piece]]) -> None:
        self._has_header, self._block = has_header, block

    def parse(self, values: Sequence[bytes | None]) -> Iterator[Parsed]:
        """A piece for each run of equal headers; an empty message or a bad one ends no run."""
        lines = [self._lines(value) for value in values]
        header = next((each.header for each in lines if each.body), b"")
        for index, each in enumerate(lines):
            header = each.header if each.body else header
            lines[index] = each._replace(header=header)
        for header, run in groupby(lines, key=lambda each: each.header):
            yield self._parse_run(header, list(run))

    def _lines(self, value: bytes | None) -> _Lines:
        if not value:
            return _Lines(b"", b"")
        if registry_framed(value):
            return _Lines(b"", b"", bad_message(value, registry_detail(value)))
        if b"\0" in value:
            return _Lines(b"", b"", bad_message(value, "not text: it has NUL bytes"))
        body = value if value.endswith(b"\n") else value + b"\n"
        header = b""
        if self._has_header:
            header, _, body = body.partition(b"\n")
        if body:
            try:
                self._block(header)
            except ValueError as error:
                return _Lines(b"", b"", bad_message(value, str(error)))
        return _Lines(header, body)

    def _parse_run(self, header: bytes, run: Sequence[_Lines]) -> Parsed:
        num_rows = np.array([_num_ends(m.body) if m.body else int(m.bad is not None) for m in run], np.int64)
        starts = np.cumsum(num_rows) - num_rows
        bad = [replace(m.bad, row=int(start)) for m, start in zip(run, starts, strict=True) if m.bad is not None]
        body = b"".join(message.body for message in run)
        if not body:
            return Parsed(num_rows=tuple(num_rows.tolist()), batch=None, row_numbers=None, bad=tuple(bad))
        piece = self._block(header)(body, int(num_rows.sum()) - len(bad))
        numbers = piece.row_numbers
        bad_lines = piece.bad
        if bad:  # lines are counted without the messages that have none
            shifted = np.delete(np.arange(int(num_rows.sum())), [row.row for row in bad])
            numbers = shifted if numbers is None else shifted[numbers]
            bad_lines = tuple(replace(line, row=int(shifted[line.row])) for line in bad_lines)
        return Parsed(
            num_rows=tuple(num_rows.tolist()),
            batch=piece.batch if piece.batch.num_rows else None,
            row_numbers=numbers,
            bad=tuple(sorted([*bad, *bad_lines], key=lambda row: row.row)),
        )


def _num_ends(body: bytes) -> int:
    """Lines of a body whose last one has its end. numpy counts four times as fast, once there is much to count."""
    if len(body) < COUNT_BYTES:
        return body.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord("\n")))


def csv_messages(text: Text, types: pa.Schema) -> TextMessages:
    """Delimited text; with a header each message begins with the column names."""
    blocks: dict[bytes, Callable[[bytes, int], Piece]] = {}

    def block(header: bytes) -> Callable[[bytes, int], Piece]:
        if header not in blocks:
            fields = _header_fields(header, text)
            missing = [name for name in types.names if name not in fields]
            if missing:
                raise ValueError(
                    f"columns {', '.join(missing[:5])} are missing; hint: see csv.header, csv.columnNames, csv.delimiter"
                )
            parser = CsvBlocks(fields, text.delimiter, {field.name: field.type for field in types})
            if len(blocks) >= MAX_HEADERS:
                blocks.clear()
            blocks[header] = lambda body, rows: parser.piece(body, types.names, 0, rows)
        return blocks[header]

    return TextMessages(has_header=text.header, block=block)


def _header_fields(header: bytes, text: Text) -> Sequence[str]:
    if not text.header:
        return text.names or []
    line = header.rstrip(b"\r").decode("utf-8", "replace")
    fields = next(csv.reader([line], delimiter=text.delimiter), [])
    if text.names is not None and len(text.names) != len(fields):
        raise ValueError(f"the header has {len(fields)} columns, csv.columnNames {len(text.names)}")
    return text.names or fields


def json_messages(types: pa.Schema) -> TextMessages:
    """One JSON object a line; other fields than the wanted are ignored, missing ones are null."""
    lines = _JsonLines(types)
    return TextMessages(has_header=False, block=lambda header: lines.piece)


class _JsonLines:
    """JSON lines to pieces: by position while lines are of one shape, else with Arrow, line by line where it must be."""

    def __init__(self, types: pa.Schema) -> None:
        self._types = types
        self._options = pj.ParseOptions(explicit_schema=types, unexpected_field_behavior="ignore")
        self._shape: NumberLines | None = None
        self._shapeless = 0

    def piece(self, body: bytes, rows: int) -> Piece:
        """So many lines."""
        batch = self._by_position(body, rows) if rows >= POSITION_ROWS else None
        if batch is None:
            return _json_piece(body, rows, self._options)
        return Piece(first_row=0, num_rows=rows, batch=batch, row_numbers=None, bad=())

    def _by_position(self, body: bytes, rows: int) -> pa.RecordBatch | None:
        if self._shapeless:
            self._shapeless -= 1
            return None
        if self._shape is None:
            self._shape = NumberLines.of(body[: body.index(b"\n")], self._types)
        try:
            if self._shape is not None:
                return self._shape.batch(body, rows)
        except NotOfThisShape:
            self._shape = None
        self._shapeless = SHAPELESS_BLOCKS
        return None


def _json_piece(body: bytes, rows: int, options: pj.ParseOptions) -> Piece:
    schema = options.explicit_schema
    tables: list[pa.Table] = [schema.empty_table()]
    bad: list[BadRow] = []
    waiting = [(body, 0)]
    while waiting:
        block, row = waiting.pop()
        lines = num_lines(block)
        table, message = _json_table(block, options)
        if table is not None and table.num_rows == lines:
            tables.append(table.select(schema.names))
        elif lines == 1:
            bad.append(BadRow(row=row, reason=BadReason.UNPARSEABLE, detail=message, payload=block.rstrip(b"\r\n")))
        else:
            half = lines // 2
            rest = without_lines(block, half)
            waiting += [(rest, row + half), (block[: len(block) - len(rest)], row)]
    batches = pa.concat_tables(tables).combine_chunks().to_batches()
    return Piece(
        first_row=0,
        num_rows=rows,
        batch=batches[0]
        if batches
        else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema),
        row_numbers=np.delete(np.arange(rows), [row.row for row in bad]) if bad else None,
        bad=tuple(bad),
    )


def _json_table(block: bytes, options: pj.ParseOptions) -> tuple[pa.Table | None, str]:
    message = "not one JSON object"
    for size in (JSON_BLOCK, len(block) + 1):
        try:
            reading = pj.ReadOptions(use_threads=False, block_size=size)
            return pj.read_json(pa.BufferReader(block), read_options=reading, parse_options=options), message
        except (pa.ArrowException, ValueError) as error:
            message = str(error).strip().partition("\n")[0]
            if "straddling" not in message:  # a line longer than a block is no fault
                break
    return None, message
