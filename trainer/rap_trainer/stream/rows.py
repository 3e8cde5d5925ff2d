"""Decoded rows on the host: columns that are sliced and joined without touching single rows.

A source keeps many of these and cuts batches from them. No bad row is in here, and nothing here
knows where rows come from. Kept as numpy arrays, whose slices cost a tenth of a tensor's.
Shapes: R rows, N elements of a jagged column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from rap_trainer.batch import Column, RawBatch

Int64s = npt.NDArray[np.int64]
_Cut = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None, npt.NDArray[np.int32] | None]  # values, nulls, lengths


@dataclass(frozen=True, kw_only=True)
class ColumnRows:
    """One column of many rows. The memory may belong to Arrow: never write into it."""

    values: npt.NDArray[Any]
    """[R] of a scalar column or one whose lists all have length 1, [N] of any other."""
    nulls: npt.NDArray[np.bool_] | None = None
    """bool per value, True where null."""
    offsets_R1: Int64s | None = None
    """Where each row's list begins in `values`, and the end; None where every row has one value."""
    is_list: bool = False
    """The declared type is a list."""
    lengths_R: npt.NDArray[np.int32] | None = field(init=False)
    """int32; None where every row has one value."""

    def __post_init__(self) -> None:
        offsets = self.offsets_R1
        lengths = None if offsets is None else np.diff(offsets).astype(np.int32)
        object.__setattr__(self, "lengths_R", lengths)

    @property
    def num_bytes(self) -> int:
        held = (self.values, self.nulls, self.lengths_R, self.offsets_R1)
        return sum(each.nbytes for each in held if each is not None)

    def cut(self, start: int, stop: int, ones_R: npt.NDArray[np.int32]) -> _Cut:
        """Rows [start, stop) as views; `ones_R` [stop - start] serves as the lengths of lists of length 1."""
        first, last, lengths = start, stop, ones_R if self.is_list else None
        if self.offsets_R1 is not None and self.lengths_R is not None:
            first, last = int(self.offsets_R1[start]), int(self.offsets_R1[stop])
            lengths = self.lengths_R[start:stop]
        return self.values[first:last], None if self.nulls is None else self.nulls[first:last], lengths


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Good rows of one piece of a stream."""

    columns: Mapping[str, ColumnRows]
    row_ids_R: Int64s
    event_times_s_R: npt.NDArray[np.float64]
    """NaN where unknown."""

    @property
    def num_rows(self) -> int:
        return len(self.row_ids_R)

    @property
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
    ones = [np.ones(span.stop - span.start, np.int32) for span in spans]
    parts = list(zip(spans, ones, strict=True))
    if len(spans) == 1:
        columns = _views(spans[0], ones[0])
    else:
        columns = {
            name: _joined([rows.columns[name].cut(start, stop, ones_R) for (rows, start, stop), ones_R in parts])
            for name in spans[0].rows.columns
        }
    return RawBatch(
        columns=columns,
        row_ids_B=_tensor([rows.row_ids_R[start:stop] for rows, start, stop in spans]),
        event_times_s_B=_tensor([rows.event_times_s_R[start:stop] for rows, start, stop in spans]),
        num_rows=sum(stop - start for _, start, stop in spans),
        global_rows=global_rows,
    )


def empty(num: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Memory of Arrow's pool, which keeps its pages: 8 times faster to fill than numpy's fresh ones (here, 2026-11)."""
    dtype = np.dtype(dtype)
    if num == 0:
        return np.empty(0, dtype)
    return np.frombuffer(pa.allocate_buffer(num * dtype.itemsize), dtype)


def _views(span: Span, ones_R: npt.NDArray[np.int32]) -> dict[str, Column]:
    """The columns of most batches, made with as few calls as can be: there are 40 of them, many times a second."""
    rows, start, stop = span
    tensor, ones = torch.from_numpy, torch.from_numpy(ones_R)
    columns = {}
    for name, column in rows.columns.items():
        values, nulls, lengths = column.cut(start, stop, ones_R)
        columns[name] = Column(
            values_N=tensor(values),
            nulls_N=None if nulls is None else tensor(nulls),
            lengths_B=None if lengths is None else ones if lengths is ones_R else tensor(lengths),
        )
    return columns


def _joined(cuts: Sequence[_Cut]) -> Column:
    values, nulls, lengths = zip(*cuts, strict=True)
    joined_nulls = None
    if any(part is not None for part in nulls):
        pairs = zip(values, nulls, strict=True)
        joined_nulls = _tensor([np.zeros(len(part), np.bool_) if null is None else null for part, null in pairs])
    return Column(
        values_N=_tensor(values),
        nulls_N=joined_nulls,
        lengths_B=None if lengths[0] is None else _tensor(lengths),
    )


def _tensor(parts: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
    """The parts in a row; one part is not copied. In this thread alone: it shares the cores with the reader's."""
    if len(parts) == 1:
        return torch.from_numpy(parts[0])
    joined = empty(sum(len(part) for part in parts), parts[0].dtype)
    return torch.from_numpy(np.concatenate(parts, out=joined))
