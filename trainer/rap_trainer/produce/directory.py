"""Events as files of a directory: each appears whole, under its name, by a rename."""

from __future__ import annotations

import io
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from rap_trainer.produce.bad_records import damage_text, text_share
from rap_trainer.produce.events import events
from rap_trainer.produce.options import Format, Produce
from rap_trainer.stream.layout import END_MARKER

_NAME = re.compile(r"^part-(\d{8})\.")
DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True, kw_only=True)
class Directory:
    """Where the files go and how they are cut."""

    path: Path
    format: Format = "parquet"
    rows_per_file: int = 10_000
    header: bool = True
    """Text files begin with the column names."""
    end_marker: bool = True
    """Write `_END` after the last file."""

    def __post_init__(self) -> None:
        if self.rows_per_file < 1:
            raise ValueError(f"rows per file must be at least 1, got {self.rows_per_file}")


def write_directory(
    options: Produce,
    directory: Directory,
    *,
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
    written: Callable[[int], None] = lambda rows: None,
) -> int:
    """Writes the events; returns their number. Files of an earlier run stay, numbering goes on.

    A file is published when the last of its events has happened, so the rate holds and no event is
    visible before its time. `written` is called with the total after each file. Raises ValueError where
    options do not go together or the directory has ended already, OSError where it cannot be written.
    """
    _check(options, directory)
    directory.path.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(_next_number(directory.path))
    is_text = directory.format in DELIMITERS
    begin_s = now_s()
    total = 0
    stream = events(text_share(options) if is_text else options, now_s=now_s)
    for table in tables(stream, directory.rows_per_file):
        total += table.num_rows
        if options.rate is not None:
            wait_s = begin_s + total / options.rate - now_s()
            if wait_s > 0:
                sleep(wait_s)
        _publish(table, next(numbers), options, directory)
        written(total)
    if directory.end_marker:
        (directory.path / END_MARKER).touch()
    return total


def _check(options: Produce, directory: Directory) -> None:
    if directory.format in DELIMITERS and options.mean_length is not None:
        raise ValueError(f"{directory.format} holds no lists: use parquet or arrow, or leave out mean length")
    if (directory.path / END_MARKER).exists():
        raise ValueError(f"{directory.path} has ended ({END_MARKER} is there): use another directory, or remove it")


def _next_number(path: Path) -> int:
    return 1 + max((int(match.group(1)) for file in path.iterdir() if (match := _NAME.match(file.name))), default=-1)


def tables(stream: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.Table]:
    """Tables of `num_rows` rows; the last may be shorter."""
    held: list[pa.RecordBatch] = []
    have = 0
    for batch in stream:
        held.append(batch)
        have += batch.num_rows
        while have >= num_rows:
            table = pa.Table.from_batches(held)
            yield table.slice(0, num_rows)
            held, have = table.slice(num_rows).to_batches(), have - num_rows
    if have:
        yield pa.Table.from_batches(held)


def _publish(table: pa.Table, number: int, options: Produce, directory: Directory) -> None:
    name = f"part-{number:08d}.{directory.format}"
    aside = directory.path / f".{name}.tmp"
    if directory.format == "parquet":
        pq.write_table(table, aside)
    elif directory.format == "arrow":
        with pa.ipc.new_file(str(aside), table.schema) as writer:
            writer.write_table(table.combine_chunks())
    else:
        aside.write_bytes(
            as_text(table, number, options, delimiter=DELIMITERS[directory.format], header=directory.header)
        )
    aside.rename(directory.path / name)


def as_text(table: pa.Table, number: int, options: Produce, *, delimiter: str, header: bool) -> bytes:
    """The rows as delimited text with a share of malformed lines; `number` makes the damage differ from text to text."""
    buffer = io.BytesIO()
    pacsv.write_csv(
        table,
        buffer,
        pacsv.WriteOptions(include_header=True, delimiter=delimiter, quoting_style="none"),
    )
    text = buffer.getvalue()
    if options.bad_ratio:
        text = damage_text(text, options, file_number=number, delimiter=delimiter.encode())
    return text if header else text.split(b"\n", 1)[1]


def with_text_defaults(options: Produce, directory: Directory) -> Produce:
    """Categories of text files are hexadecimal, as Criteo's are."""
    return replace(options, hex_categories=True) if directory.format in DELIMITERS else options
