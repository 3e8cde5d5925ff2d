"""Decoded rows on the host: columns that are sliced and joined without touching single rows.

A source keeps many of these and cuts batches from them. No bad row is in here, and nothing here
knows where rows come from. Columns with one value a row stand as the rows of one matrix a dtype, so that a
batch of 40 columns is cut with a few slices, or where copying would cost more are arrays of their own, as jagged ones are:
slices of those cost a tenth of a tensor's.
Shapes: R rows, N elements of a jagged column, C columns of a block, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from rap_trainer.batch import Block, Column, RawBatch, tensors_of
from rap_trainer.stream.kept_memory import KEPT, LEAST_BYTES

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ColumnRows:
    """One column of many rows. The memory may belong to Arrow: never write into it."""

    values: npt.NDArray[Any]
    """[R] of a scalar column or one whose lists all have length 1, [N] of any other."""
    nulls: npt.NDArray[np.bool_] | None = None
    """bool per value, True where null."""
    offsets_R1: Int32s | None = None
    """Where each row's list begins in `values`, and the end; None where every row has one value."""
    is_list: bool = False
    """The declared type is a list."""
    lengths_R: Int32s | None = field(init=False)
    """None where every row has one value."""

    def __post_init__(self) -> None:
        offsets = self.offsets_R1
        lengths = None if offsets is None else offsets[1:] - offsets[:-1]
        object.__setattr__(self, "lengths_R", lengths)

    @property
    def num_bytes(self) -> int:
        held = (self.values, self.nulls, self.lengths_R, self.offsets_R1)
        return sum(each.nbytes for each in held if each is not None)

    def bounds(self, start: int, stop: int) -> tuple[int, int]:
        """Where the values of rows [start, stop) begin and end."""
        offsets = self.offsets_R1
        return (start, stop) if offsets is None else (offsets.item(start), offsets.item(stop))


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Good rows of one piece of a stream."""

    columns: Mapping[str, ColumnRows]
    row_ids_R: Int64s
    event_times_s_R: npt.NDArray[np.float64]
    """NaN where unknown."""
    blocks: tuple[Block, ...] = ()
    """[C, R]: values by dtype, then null flags; the memory of columns with one value a row, of all or of some."""

    @property
    def num_rows(self) -> int:
        return len(self.row_ids_R)

    @cached_property
    def num_bytes(self) -> int:
        own = self.row_ids_R.nbytes + self.event_times_s_R.nbytes
        return own + sum(column.num_bytes for column in self.columns.values())


class Span(NamedTuple):
    """Rows [start, stop) of a piece."""

    rows: Rows
    start: int
    stop: int


def batch_of(spans: Sequence[Span], global_rows: int) -> RawBatch:
    """The rows of all spans (at least one, with the same columns) in order, as a rank's part of `global_rows` rows.

    One span is not copied.
    """
    num_rows = sum([span.stop - span.start for span in spans])
    blocks = _cut_blocks(spans, num_rows)
    values, nulls = tensors_of(blocks, "values"), tensors_of(blocks, "nulls")
    ones_B = _ones(num_rows)
    if len(spans) == 1:
        columns = _cut(spans[0], values, nulls, ones_B)
    else:
        columns = {
            name: Column.of(values[name], nulls.get(name), ones_B if column.is_list else None)
            if name in values
            else _joined([(rows.columns[name], start, stop) for rows, start, stop in spans], ones_B)
            for name, column in spans[0].rows.columns.items()
        }
    return RawBatch(
        columns=columns,
        row_ids_B=_tensor([rows.row_ids_R[start:stop] for rows, start, stop in spans]),
        event_times_s_B=_tensor([rows.event_times_s_R[start:stop] for rows, start, stop in spans]),
        num_rows=num_rows,
        global_rows=global_rows,
        blocks=blocks,
    )


@lru_cache(maxsize=8)  # sizes of batches; made anew it takes 8 % of cutting one
def _ones(num_rows: int) -> torch.Tensor:
    """Lengths of lists that all have one value, [B]. The same memory for all batches, into which nobody writes."""
    with torch.inference_mode(False):  # it may serve first and train later
        return torch.ones(num_rows, dtype=torch.int32)


def _cut_blocks(spans: Sequence[Span], num_rows: int) -> tuple[Block, ...]:
    """The spans' blocks beside each other; none where a column has one value a row in some spans only."""
    if len(spans) == 1:
        rows, start, stop = spans[0]
        return tuple([Block(names=b.names, field=b.field, data_CB=b.data_CB[:, start:stop]) for b in rows.blocks])
    values = [[block for block in span.rows.blocks if block.field == "values"] for span in spans]
    if any([block.names for block in each] != [block.names for block in values[0]] for each in values):
        return ()
    joined = []
    for blocks in zip(*values, strict=True):
        data_CB = matrix(len(blocks[0].names), num_rows, blocks[0].data_CB.numpy().dtype)
        parts = [block.data_CB.numpy()[:, span.start : span.stop] for block, span in zip(blocks, spans, strict=True)]
        np.concatenate(parts, axis=1, out=data_CB)
        joined.append(replace(blocks[0], data_CB=torch.from_numpy(data_CB)))
    nulls = _joined_nulls(spans, [name for block in joined for name in block.names], num_rows)
    return tuple(joined) if nulls is None else (*joined, nulls)


def _joined_nulls(spans: Sequence[Span], names: Sequence[str], num_rows: int) -> Block | None:
    """The null flags of columns that have any in some span."""
    parts = [next((block for block in span.rows.blocks if block.field == "nulls"), None) for span in spans]
    with_nulls = {name for block in parts if block is not None for name in block.names}
    if not with_nulls:
        return None
    kept = tuple(name for name in names if name in with_nulls)
    flags_CB = matrix(len(kept), num_rows, np.bool_)
    begin = 0
    for block, (_, start, stop) in zip(parts, spans, strict=True):
        target_CB = flags_CB[:, begin : begin + stop - start]
        begin += stop - start
        if block is None or block.names != kept:
            target_CB[:] = False
        if block is not None:
            rows = slice(None) if block.names == kept else [kept.index(name) for name in block.names]
            target_CB[rows] = block.data_CB.numpy()[:, start:stop]
    return Block(names=kept, field="nulls", data_CB=torch.from_numpy(flags_CB))


def matrix(num_columns: int, num_rows: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """[C, R] of memory as `empty` gives it."""
    return empty(num_columns * num_rows, dtype).reshape(num_columns, num_rows)


def empty(num: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Memory that keeps its pages, which fills 8 times faster than numpy's fresh ones (here, 2026-11)."""
    dtype = np.dtype(dtype)
    if num == 0:
        return np.empty(0, dtype)
    if num * dtype.itemsize >= LEAST_BYTES:
        return KEPT.array(num, dtype)
    return np.frombuffer(pa.allocate_buffer(num * dtype.itemsize), dtype)


def _cut(
    span: Span, values_of: Mapping[str, torch.Tensor], nulls_of: Mapping[str, torch.Tensor], ones_B: torch.Tensor
) -> dict[str, Column]:
    """The span's part of every column, as views: of the blocks that were cut already, or of a column's own memory.

    Done for every column and step, so without a call more than it takes.
    """
    rows, start, stop = span
    make, view = Column.of, torch.from_numpy
    columns = {}
    for name, column in rows.columns.items():
        lengths_B = ones_B if column.is_list else None
        if name in values_of:
            columns[name] = make(values_of[name], nulls_of.get(name), lengths_B)
            continue
        first, last, lengths_R = start, stop, column.lengths_R
        if lengths_R is not None:
            first, last = column.bounds(start, stop)
            lengths_B = view(lengths_R[start:stop])
        nulls_N = None if column.nulls is None else view(column.nulls[first:last])
        columns[name] = make(view(column.values[first:last]), nulls_N, lengths_B)
    return columns


def _joined(parts: Sequence[tuple[ColumnRows, int, int]], ones_B: torch.Tensor) -> Column:
    """Rows [start, stop) of each part in a row."""
    cuts = [(column, slice(*column.bounds(start, stop)), slice(start, stop)) for column, start, stop in parts]
    values, nulls = [column.values[cut] for column, cut, _ in cuts], None
    if any(column.nulls is not None for column, _, _ in cuts):
        nulls = _tensor([_flags(column, cut) for column, cut, _ in cuts])
    lengths = ones_B if parts[0][0].is_list else None
    if any(column.lengths_R is not None for column, _, _ in cuts):
        lengths = _tensor([_lengths(column, rows) for column, _, rows in cuts])
    return Column.of(_tensor(values), nulls, lengths)


def _flags(column: ColumnRows, cut: slice) -> npt.NDArray[np.bool_]:
    return np.zeros(cut.stop - cut.start, np.bool_) if column.nulls is None else column.nulls[cut]


def _lengths(column: ColumnRows, rows: slice) -> Int32s:
    return np.ones(rows.stop - rows.start, np.int32) if column.lengths_R is None else column.lengths_R[rows]


def _tensor(parts: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
    """The parts in a row; one part is not copied. In this thread alone: it shares the cores with the reader's."""
    if len(parts) == 1:
        return torch.from_numpy(parts[0])
    joined = empty(sum(len(part) for part in parts), parts[0].dtype)
    return torch.from_numpy(np.concatenate(parts, out=joined))
