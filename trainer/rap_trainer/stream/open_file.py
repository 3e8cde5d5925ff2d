"""Opens a file of the job's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from rap_contract.source import Csv

from rap_trainer.stream.arrow_file import ArrowEvents
from rap_trainer.stream.csv_file import CsvEvents
from rap_trainer.stream.decode import Declared
from rap_trainer.stream.file_format import EventFile
from rap_trainer.stream.parquet_file import ParquetEvents
from rap_trainer.stream.step_ends import StepEnds

_ARROW = {"int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(), "float64": pa.float64()}


def open_file(path: Path, format_name: str, csv: Csv, declared: Declared, *, ends: StepEnds | None = None) -> EventFile:
    """The file, open; in pieces that end where steps do if it can. Raises FileProblem, and OSError when the disk itself fails."""
    if format_name == "parquet":
        return ParquetEvents(path, ends)
    if format_name == "arrow":
        return ArrowEvents(path)
    if format_name == "tsv" and csv.delimiter == ",":
        csv = csv.model_copy(update={"delimiter": "\t"})
    return CsvEvents(path, csv, text_types(declared))


def wanted_columns(declared: Declared) -> list[str]:
    """Columns to read, each once."""
    time_column = declared.event_time.column
    extra = [] if time_column is None or time_column in declared.columns else [time_column]
    return [*declared.columns, *extra]


def text_types(declared: Declared) -> Mapping[str, pa.DataType]:
    """How a text column is parsed: as its declared element type; hexadecimal ones stay text."""
    types = {name: _ARROW[value_type.dtype] for name, value_type in declared.columns.items()}
    types |= {name: pa.binary() for name in declared.hex_columns if name in types}
    if (time_column := declared.event_time.column) is not None:
        types.setdefault(time_column, pa.float64())
    return types
