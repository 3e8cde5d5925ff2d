"""Rows of a Criteo file under our column names, in bounded memory, over and over.

Reads Parquet with label, int_*, cat_*; the Kaggle CSV with its header; the original tab-separated
text without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from rap_trainer.produce.options import NUM_CATS, NUM_INTS
from rap_trainer.produce.synthetic import BLOCK_ROWS, hex_array
from rap_trainer.stream.hexadecimal import parse_hex

NAMES = ["label", *(f"int_{i}" for i in range(NUM_INTS)), *(f"cat_{i}" for i in range(NUM_CATS))]


def replayed(path: Path, *, hex_categories: bool, repeat: bool) -> Iterator[pa.RecordBatch]:
    """Blocks of the file's rows. Raises ValueError for a file that is not Criteo's, OSError if it cannot be read."""
    while True:
        num_rows = 0
        for batch in _parquet(path) if path.suffix == ".parquet" else _text(path):
            num_rows += batch.num_rows
            yield _normalised(batch, hex_categories=hex_categories)
        if not repeat or num_rows == 0:
            return


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        missing = [name for name in NAMES if name not in file.schema_arrow.names]
        if missing:
            raise ValueError(f"{path}: not a Criteo file, column {missing[0]} is missing (and {len(missing) - 1} more)")
        for batch in file.iter_batches(BLOCK_ROWS, columns=NAMES):
            yield batch.select(NAMES)


def _text(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.input_stream(str(path)) as stream:
        first_line = stream.read(1 << 16).split(b"\n", 1)[0]
    delimiter = "\t" if b"\t" in first_line else ","
    num_fields = first_line.count(delimiter.encode()) + 1
    if num_fields != len(NAMES):
        raise ValueError(f"{path}: not a Criteo file, it has {num_fields} columns instead of {len(NAMES)}")
    has_header = not first_line[:1].isdigit()
    types = {name: pa.string() if name.startswith("cat_") else pa.float64() for name in NAMES}
    reader = pacsv.open_csv(
        str(path),
        read_options=pacsv.ReadOptions(column_names=NAMES, skip_rows=int(has_header)),
        parse_options=pacsv.ParseOptions(delimiter=delimiter),
        convert_options=pacsv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
    )
    for batch in reader:
        for start in range(0, batch.num_rows, BLOCK_ROWS):
            yield batch.slice(start, BLOCK_ROWS)


def _normalised(batch: pa.RecordBatch, *, hex_categories: bool) -> pa.RecordBatch:
    columns = []
    for name, array in zip(NAMES, batch.columns, strict=True):
        if not name.startswith("cat_"):
            columns.append(array.cast(pa.int32()))
        elif hex_categories and not pa.types.is_string(array.type):
            nulls = array.is_null().to_numpy(zero_copy_only=False)
            ids = pc.fill_null(array.cast(pa.int64()), 0).to_numpy()
            columns.append(hex_array(ids % 2**32, nulls))
        elif hex_categories:
            columns.append(array)
        elif pa.types.is_string(array.type):
            ids, bad = parse_hex(array)
            if bad.any():
                raise ValueError(f"{name} is {array[int(np.argmax(bad))].as_py()!r}, not hexadecimal")
            columns.append(pa.array(ids.view(np.int64), mask=array.is_null().to_numpy(zero_copy_only=False)))
        else:
            columns.append(array.cast(pa.int64()))
    return pa.record_batch(columns, names=NAMES)
