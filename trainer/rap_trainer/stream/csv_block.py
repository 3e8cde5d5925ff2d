"""A block of whole lines of delimited text, parsed with the declared types.

A block with a value that is not of its type is read as text and converted column by column, so that only the lines
at fault are lost. A line break inside quotes is not supported: a block with one is halved until its two lines stand
alone, and both are bad. It knows neither files nor messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from rap_trainer.stream.dead_letters import BadReason, BadRow
from rap_trainer.stream.file_format import Piece
from rap_trainer.stream.text_values import cast_text, reason_of

if TYPE_CHECKING:  # reader processes come here too, and do without torch
    from rap_trainer.stream.rows import Int64s


@dataclass(frozen=True)
class _Parsed:
    table: pa.Table
    row_numbers: Int64s
    bad: tuple[BadRow, ...]


class CsvBlocks:
    """Parses blocks whose fields have `names` in order; `types` gives the Arrow type of each column that is wanted."""

    def __init__(self, names: Sequence[str], delimiter: str, types: Mapping[str, pa.DataType]) -> None:
        self._names, self._delimiter, self._types = list(names), delimiter, types

    def piece(self, block: bytes, columns: list[str], row: int, num_rows: int) -> Piece:
        """The named columns of the block's `num_rows` lines; its first is row `row`."""
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
        lines = num_lines(block)
        table, invalid, message = self._read(block, {name: self._types[name] for name in columns})
        if table is not None and table.num_rows + len(invalid) == lines:
            yield _parsed(table, invalid, row, lines)
            return
        if table is None:
            table, invalid, message = self._read(block, dict.fromkeys(columns, pa.string()))
            if table is not None and table.num_rows + len(invalid) == lines:
                yield self._typed(_parsed(table, invalid, row, lines), block, row)
                return
        if lines == 1:
            yield self._bad_line(block, columns, row, message)
            return
        half = lines // 2
        rest = without_lines(block, half)
        yield from self._parse(block[: len(block) - len(rest)], columns, row)
        yield from self._parse(rest, columns, row + half)

    def _read(self, block: bytes, types: Mapping[str, pa.DataType]) -> tuple[pa.Table | None, list[pc.InvalidRow], str]:
        """The columns of `types`, the lines with a wrong number of fields, and what Arrow said if it gave up."""
        invalid: list[pc.InvalidRow] = []

        def skip(invalid_row: pc.InvalidRow) -> str:
            invalid.append(invalid_row)
            return "skip"

        try:
            table = pc.read_csv(
                pa.BufferReader(block),
                read_options=pc.ReadOptions(use_threads=False, column_names=self._names, block_size=len(block) + 1),
                parse_options=pc.ParseOptions(
                    delimiter=self._delimiter, ignore_empty_lines=False, invalid_row_handler=skip
                ),
                convert_options=pc.ConvertOptions(
                    column_types=dict(types),
                    include_columns=list(types),
                    null_values=[""],
                    strings_can_be_null=True,
                    check_utf8=False,
                ),
            )
        except pa.ArrowInvalid as error:
            return None, invalid, str(error)
        return table, invalid, "a line break inside quotes"

    def _typed(self, parsed: _Parsed, block: bytes, row: int) -> _Parsed:
        """Text columns with their types, and each line with a value that does not fit as a bad one."""
        columns: dict[str, pa.Array] = {}
        found: dict[int, BadRow] = {}
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        for name, column in zip(parsed.table.column_names, parsed.table.columns, strict=True):
            text, arrow = column.combine_chunks(), self._types[name]
            columns[name], bad = cast_text(text, arrow)
            for index in bad:
                value = text[index].cast(pa.binary()).as_py().decode("utf-8", "backslashreplace")
                number = int(parsed.row_numbers[index])
                found.setdefault(
                    index,
                    BadRow(
                        row=number,
                        reason=reason_of(value, arrow),
                        detail=f"column {name} is {value!r}, no {arrow}",
                        payload=_line(block, ends, number - row),
                    ),
                )
        table, numbers = pa.table(columns), parsed.row_numbers
        if found:
            keep = np.ones(len(numbers), np.bool_)
            keep[list(found)] = False
            table, numbers = table.filter(pa.array(keep)), numbers[keep]
        return _Parsed(table, numbers, (*parsed.bad, *found.values()))

    def _bad_line(self, line: bytes, columns: list[str], row: int, message: str) -> _Parsed:
        empty = pa.schema([(name, self._types[name]) for name in columns]).empty_table()
        bad = BadRow(row=row, reason=BadReason.UNPARSEABLE, detail=message, payload=line.rstrip(b"\r\n"))
        return _Parsed(empty, np.zeros(0, np.int64), (bad,))


def _parsed(table: pa.Table, invalid: list[pc.InvalidRow], row: int, lines: int) -> _Parsed:
    numbers = np.arange(row, row + lines)
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


def _line(block: bytes, ends: Int64s, number: int) -> bytes:
    """A line without its end; `ends` are the places of all line ends."""
    start = int(ends[number - 1]) + 1 if number else 0
    stop = int(ends[number]) if number < len(ends) else len(block)
    return block[start:stop].rstrip(b"\r")


def num_lines(block: bytes) -> int:
    """Lines of a block; the last may lack its end."""
    return block.count(b"\n") + (not block.endswith(b"\n"))


def without_lines(block: bytes, count: int) -> bytes:
    """The block after its first `count` lines."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    return block[int(ends[count - 1]) + 1 :] if count <= len(ends) else b""


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
