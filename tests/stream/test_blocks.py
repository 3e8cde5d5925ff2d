"""Columns with one value a row stand in one matrix a dtype, and batches cut from it say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from rap_contract.types import ValueType
from rap_trainer.batch import Block, RawBatch
from rap_trainer.stream.decode import Declared, Decoder
from rap_trainer.stream.rows import Rows, Span, batch_of

TYPES = {"x": "float32", "n": "int32", "cat": "list<int64>", "y": "float32", "id": "int64", "tags": "list<int64>"}
BATCH: dict[str, Any] = {
    "x": [1.5, None, 2.5, 3.5],
    "n": pa.array([1, 2, 3, 4], pa.int32()),
    "cat": [None, 7, 8, 9],
    "y": [0.5, 1.5, 2.5, 3.5],
    "id": [10, 20, 30, 40],
    "tags": [[1], [], [2, 3], None],
}


def rows(data: Mapping[str, Any], first: int = 0) -> Rows:
    batch = pa.record_batch(data)
    decoder = Decoder(Declared(columns={n: ValueType.parse(t) for n, t in TYPES.items()}), batch.schema, "here")
    row_ids = np.arange(first, first + batch.num_rows)
    return decoder.decode(batch, row_ids=row_ids, event_time_s=0.0).rows


def names(batch: RawBatch) -> list[tuple[str, tuple[str, ...]]]:
    return [(block.field, block.names) for block in batch.blocks]


def expect_same_memory(batch: RawBatch) -> None:
    for block in batch.blocks:
        assert block.data_CB.shape == (len(block.names), batch.num_rows)
        for row, name in zip(block.data_CB, block.names, strict=True):
            column = batch.columns[name]
            tensor = column.values_N if block.field == "values" else column.nulls_N
            assert tensor is not None
            assert (tensor.data_ptr(), tensor.shape, tensor.dtype) == (row.data_ptr(), row.shape, row.dtype)
            assert tensor.is_contiguous()
    with_nulls = {name for name, column in batch.columns.items() if column.nulls_N is not None}
    flat = {name for block in batch.blocks if block.field == "values" for name in block.names}
    assert {name for block in batch.blocks if block.field == "nulls" for name in block.names} == with_nulls & flat


def contents(batch: RawBatch) -> dict[str, Any]:
    found: dict[str, Any] = {"row_ids": batch.row_ids_B.tolist()}
    for name, column in batch.columns.items():
        lengths = None if column.lengths_B is None else column.lengths_B.tolist()
        nulls = [False] * column.values_N.numel() if column.nulls_N is None else column.nulls_N.tolist()
        found[name] = (column.values_N.tolist(), nulls, lengths)
    return found


def test_columns_of_one_dtype_and_all_null_flags_are_one_matrix_each() -> None:
    batch = batch_of([Span(rows(BATCH), 1, 4)], 3)
    assert names(batch) == [
        ("values", ("n",)),
        ("values", ("cat", "id")),
        ("values", ("x", "y")),
        ("nulls", ("cat", "x")),
    ]
    expect_same_memory(batch)
    assert list(batch.columns) == list(TYPES)
    assert contents(batch) == {
        "row_ids": [1, 2, 3],
        "x": ([0.0, 2.5, 3.5], [True, False, False], None),
        "n": ([2, 3, 4], [False] * 3, None),
        "cat": ([7, 8, 9], [False] * 3, [1, 1, 1]),
        "y": ([1.5, 2.5, 3.5], [False] * 3, None),
        "id": ([20, 30, 40], [False] * 3, None),
        "tags": ([2, 3, 0], [False, False, True], [0, 2, 1]),
    }


def test_batches_over_several_chunks_are_joined_as_matrices() -> None:
    without_nulls = {**BATCH, "x": [1.0, 2.0, 3.0, 4.0], "cat": [1, 2, 3, 4]}
    other_nulls = {**BATCH, "x": [1.0, 2.0, 3.0, 4.0], "y": [None, 1.5, 2.5, 3.5]}
    parts = [rows(BATCH), rows(without_nulls, 4), rows(other_nulls, 8)]
    batch = batch_of([Span(parts[0], 1, 4), Span(parts[1], 0, 4), Span(parts[2], 0, 2)], 9)
    expect_same_memory(batch)
    assert names(batch)[-1] == ("nulls", ("cat", "x", "y"))
    together = contents(batch)
    alone = [contents(batch_of([Span(parts[0], 1, 4)], 3)), contents(batch_of([Span(parts[1], 0, 4)], 4))]
    alone.append(contents(batch_of([Span(parts[2], 0, 2)], 2)))
    assert together["row_ids"] == [row for part in alone for row in part["row_ids"]]
    for name in TYPES:
        for place in range(3):
            pieces = [part[name][place] for part in alone]
            assert together[name][place] == (None if pieces[0] is None else [v for piece in pieces for v in piece])


def test_a_column_with_lists_in_some_chunks_only_keeps_its_rows_and_drops_the_blocks() -> None:
    as_lists = {**BATCH, "cat": [[1, 2], None, [], [3]]}
    batch = batch_of([Span(rows(BATCH), 2, 4), Span(rows(as_lists), 0, 4)], 6)
    assert batch.blocks == ()
    assert contents(batch)["cat"] == ([8, 9, 1, 2, 0, 3], [False] * 4 + [True, False], [1, 1, 2, 1, 0, 1])
    assert contents(batch)["x"] == ([2.5, 3.5, 1.5, 0.0, 2.5, 3.5], [False] * 3 + [True, False, False], None)


def test_a_batch_of_no_rows_has_the_same_blocks() -> None:
    batch = batch_of([Span(rows(BATCH), 2, 2)], 6)
    expect_same_memory(batch)
    assert [block.names for block in batch.blocks if block.field == "values"] == [("n",), ("cat", "id"), ("x", "y")]


def test_a_moved_batch_is_moved_matrix_by_matrix_and_its_columns_stay_their_rows() -> None:
    batch = batch_of([Span(rows(BATCH), 0, 4)], 4)
    moved: list[torch.Tensor] = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor)
        return tensor.clone()

    copy = batch.map(move)
    expect_same_memory(copy)
    assert contents(copy) == contents(batch)
    # four blocks; lengths of the lists of 1; values, nulls and lengths of tags; row ids and event times
    assert len(moved) == 4 + 1 + 3 + 2
    assert copy.columns["x"].values_N.data_ptr() != batch.columns["x"].values_N.data_ptr()


def test_null_flags_outside_a_block_are_moved_too() -> None:
    batch = batch_of([Span(rows(BATCH), 0, 4)], 4)
    values_only = tuple(block for block in batch.blocks if block.field == "values")
    flags = batch.columns["x"].nulls_N
    moved = RawBatch(
        columns=batch.columns,
        row_ids_B=batch.row_ids_B,
        event_times_s_B=batch.event_times_s_B,
        num_rows=4,
        global_rows=4,
        blocks=values_only,
    ).map(torch.clone)
    assert flags is not None
    assert moved.columns["x"].nulls_N is not None
    assert moved.columns["x"].nulls_N.tolist() == flags.tolist()
    assert all(isinstance(block, Block) for block in moved.blocks)
