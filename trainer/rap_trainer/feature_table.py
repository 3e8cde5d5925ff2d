"""Preprocessed batches as Arrow tables, and files of them: Parquet, Arrow IPC, CSV and TSV.

Values pass unchanged; in text a list is its elements with spaces between, and floats are written so
that they read back to the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import torch
from rap_contract.graph import FeatureGraph

from rap_trainer.batch import ModelBatch

SUFFIXES = (".parquet", ".arrow", ".ipc", ".csv", ".tsv")


class TableWriter(Protocol):
    """An open output."""

    def write(self, table: pa.Table, /) -> object:
        """Appends rows."""


def feature_table(batch: ModelBatch, graph: FeatureGraph, *, has_label: bool) -> pa.Table:
    """One row a sample; columns as `feature_schema` names them."""
    columns: list[pa.Array] = [pa.array(batch.labels_B.numpy())] if has_label else []
    start = 0
    for dense in graph.dense:
        values = np.ascontiguousarray(batch.dense_BD[:, start : start + dense.width].numpy()).reshape(-1)
        start += dense.width
        flat = pa.array(values)
        columns.append(flat if dense.width == 1 else pa.FixedSizeListArray.from_arrays(flat, dense.width))
    columns += _sparse_columns(batch, graph)
    return pa.Table.from_arrays(columns, schema=feature_schema(graph, has_label=has_label))


def feature_schema(graph: FeatureGraph, *, has_label: bool) -> pa.Schema:
    """Names and types: the label, then dense features, then sparse ones, each followed by its weights."""
    fields = [(graph.label, pa.float32())] if has_label else []
    fields += [
        (dense.name, pa.float32() if dense.width == 1 else pa.list_(pa.float32(), dense.width)) for dense in graph.dense
    ]
    for sparse in graph.sparse:
        fields.append((sparse.name, pa.list_(pa.int64())))
        if graph.nodes[sparse.node].weighted:
            fields.append((f"{sparse.name}_weights", pa.list_(pa.float32())))
    return pa.schema(fields)


@contextmanager
def open_table(path: Path, suffix: str, schema: pa.Schema) -> Iterator[TableWriter]:
    """A writer of the format that `suffix` names; durable when left without an error. Raises ValueError."""
    if suffix == ".parquet":
        with pq.ParquetWriter(path, schema) as writer:
            yield writer
    elif suffix in (".arrow", ".ipc"):
        with pa.ipc.new_file(str(path), schema) as writer:
            yield writer
    elif suffix in (".csv", ".tsv"):
        options = pacsv.WriteOptions(delimiter="," if suffix == ".csv" else "\t", quoting_style="none")
        with pacsv.CSVWriter(str(path), _as_text(schema.empty_table()).schema, write_options=options) as writer:
            yield _TextWriter(writer)
    else:
        raise ValueError(f"unknown output format {suffix or '(none)'}; hint: end the name with {', '.join(SUFFIXES)}")
    with path.open("rb") as file:
        os.fsync(file.fileno())


class _TextWriter:
    def __init__(self, writer: pacsv.CSVWriter) -> None:
        self._writer = writer

    def write(self, table: pa.Table, /) -> None:
        self._writer.write(_as_text(table))


def _as_text(table: pa.Table) -> pa.Table:
    """Lists as text, everything else as it is."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if isinstance(column.type, (pa.ListType, pa.FixedSizeListType)):
            as_list = column.cast(pa.list_(column.type.value_type)).cast(pa.list_(pa.string()))
            column = pc.binary_join(as_list, " ")
        columns[name] = column
    return pa.table(columns)


def _sparse_columns(batch: ModelBatch, graph: FeatureGraph) -> list[pa.Array]:
    columns: list[pa.Array] = []
    if not graph.sparse:
        return columns
    lengths_FB = batch.sparse.lengths().view(len(graph.sparse), -1)
    weights = batch.sparse.weights_or_none()
    start = 0
    for sparse, lengths_B in zip(graph.sparse, lengths_FB, strict=True):
        offsets = torch.zeros(lengths_B.numel() + 1, dtype=torch.int32)
        torch.cumsum(lengths_B, 0, out=offsets[1:])
        stop = start + int(offsets[-1])
        rows = pa.array(offsets.numpy())
        columns.append(pa.ListArray.from_arrays(rows, pa.array(batch.sparse.values()[start:stop].numpy())))
        if weights is not None and graph.nodes[sparse.node].weighted:
            columns.append(pa.ListArray.from_arrays(rows, pa.array(weights[start:stop].numpy())))
        start = stop
    return columns
