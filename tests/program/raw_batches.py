"""Raw batches as tensors and as Python rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from ops.cases import numbers_of
from ops.reference import Rows
from ops.rows import GARBAGE
from program.python_program import Batch
from rap_contract.graph import FeatureGraph
from rap_contract.types import ValueType
from rap_trainer.batch import Column, RawBatch
from rap_trainer.synthetic_batch import followers

Draw = Callable[[Any], Any]


@st.composite
def batches(draw: Draw, graph: FeatureGraph, max_rows: int = 5) -> Batch:
    """A batch of a graph's columns with nulls; weights and scores run beside their ids."""
    num_rows = draw(st.integers(0, max_rows))
    follows = followers(graph)
    columns: dict[str, Rows] = {}
    for name in dict.fromkeys((*graph.inputs, graph.label)):
        if name not in follows:
            columns[name] = draw(raw_columns(graph.columns[name], num_rows, nulls=name != graph.label))
    for name, leader in follows.items():
        sizes = [len(row) for row in columns[leader].rows]
        score = st.floats(-4, 4, width=32)
        element = score if draw(st.booleans()) else score | st.none()
        columns[name] = Rows([draw(st.lists(element, min_size=n, max_size=n)) for n in sizes], True, "float32")
    row_ids = draw(st.lists(numbers_of("int64"), min_size=num_rows, max_size=num_rows))
    return Batch(columns, row_ids)


@st.composite
def raw_columns(draw: Draw, declared: ValueType, num_rows: int, nulls: bool = True) -> Rows:
    number = numbers_of(declared.dtype)
    if nulls and draw(st.booleans()):
        number = number | st.none()
    row = st.lists(number, max_size=5) if declared.is_list else number
    return Rows(draw(st.lists(row, min_size=num_rows, max_size=num_rows)), declared.is_list, str(declared.dtype))


def raw_of(batch: Batch, device: str = "cpu") -> RawBatch:
    """The batch as a source delivers it."""
    num_rows = len(batch.row_ids)
    return RawBatch(
        columns={name: _column(rows).map(lambda t: t.to(device)) for name, rows in batch.columns.items()},
        row_ids_B=torch.tensor(batch.row_ids, dtype=torch.int64, device=device),
        event_times_s_B=torch.zeros(num_rows, dtype=torch.float64, device=device),
        num_rows=num_rows,
        global_rows=num_rows,
    )


def _column(column: Rows) -> Column:
    flat = [x for row in column.rows for x in row] if column.is_list else column.rows
    nulls = [x is None for x in flat]
    return Column(
        values_N=torch.tensor([GARBAGE if x is None else x for x in flat], dtype=getattr(torch, column.dtype)),
        nulls_N=torch.tensor(nulls, dtype=torch.bool) if any(nulls) else None,
        lengths_B=torch.tensor([len(row) for row in column.rows], dtype=torch.int32) if column.is_list else None,
    )


def rows_of(raw: RawBatch) -> Batch:
    """The tensors of a batch as Python rows."""
    return Batch({name: _rows(column) for name, column in raw.columns.items()}, raw.row_ids_B.tolist())


def _rows(column: Column) -> Rows:
    values: list[Any] = column.values_N.tolist()
    if column.nulls_N is not None:
        values = [None if null else x for x, null in zip(values, column.nulls_N.tolist(), strict=True)]
    dtype = str(column.values_N.dtype).removeprefix("torch.")
    if column.lengths_B is None:
        return Rows(values, False, dtype)
    iterator = iter(values)
    return Rows([[next(iterator) for _ in range(n)] for n in column.lengths_B.tolist()], True, dtype)
