"""A feature graph run node by node in plain Python: what `Program` is compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ops.reference import REFERENCE, Rows, collapse, f32
from rap_contract.graph import FeatureGraph, FeatureSpec, Node


@dataclass(frozen=True)
class Batch:
    """Columns of raw rows: lists hold None for null elements, [None] for a null row."""

    columns: dict[str, Rows]
    row_ids: list[int]


def values_of(graph: FeatureGraph, batch: Batch) -> list[Rows]:
    """The value of every node."""
    values: list[Rows] = []
    for node in graph.nodes:
        values.append(_value(node, values, batch))
    return values


def _value(node: Node, values: list[Rows], batch: Batch) -> Rows:
    if node.column is not None:
        column = batch.columns[node.column]
        if node.weights is None:
            return column
        weights = [[1.0 if w is None else w for w in row] for row in batch.columns[node.weights].rows]
        return replace(column, weights=weights)
    given = [values[index] for index in node.inputs]
    if node.op is None:
        assert node.collapse is not None
        return collapse(given[0], node.collapse, given[1] if len(given) > 1 else None)
    references = dict(zip(node.references, given[1:], strict=True))
    return REFERENCE[node.op.stem](node.op, given[0], references, batch.row_ids)


def dense_of(graph: FeatureGraph, values: list[Rows]) -> list[list[float]]:
    """[B][D]."""
    matrix: list[list[float]] = [[] for _ in values[0].rows]
    for feature in graph.dense:
        for row, numbers in zip(values[feature.node].rows, matrix, strict=True):
            numbers.extend([f32(x) for x in (row if isinstance(row, list) else [row])])
    return matrix


def sparse_of(feature: FeatureSpec, values: list[Rows]) -> tuple[list[list[int]], list[list[float]] | None]:
    """The lists of one sparse feature, and their weights."""
    assert feature.table is not None
    column = values[feature.node]
    rows: list[list[Any]] = [[] if row is None else row if column.is_list else [row] for row in column.rows]
    table_rows = feature.table.rows
    if feature.out_of_range == "zero":
        rows = [[x if 0 <= x < table_rows else 0 for x in row] for row in rows]
    assert all(0 <= x < table_rows for row in rows for x in row), f"{feature.name} leaves its table"
    return rows, column.weights
