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
import torch

from rap_trainer.batch import Column, RawBatch

Int64s = npt.NDArray[np.int64]


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

    def column(self, start: int, stop: int, ones_R: torch.Tensor) -> Column:
        """Rows [start, stop) as views; `ones_R` (int32 [stop - start]) serves as the lengths of lists of length 1."""
        first, last, lengths = start, stop, ones_R if self.is_list else None
        if self.offsets_R1 is not None and self.lengths_R is not None:
            first, last = int(self.offsets_R1[start]), int(self.offsets_R1[stop])
            lengths = torch.from_numpy(self.lengths_R[start:stop])
        nulls = None if self.nulls is None else torch.from_numpy(self.nulls[first:last])
        return Column(values_N=torch.from_numpy(self.values[first:last]), nulls_N=nulls, lengths_B=lengths)


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
    ones = [torch.ones(span.stop - span.start, dtype=torch.int32) for span in spans]
    parts = list(zip(spans, ones, strict=True))
    columns = {
        name: _joined([rows.columns[name].column(start, stop, ones_R) for (rows, start, stop), ones_R in parts])
        for name in spans[0].rows.columns
    }
    return RawBatch(
        columns=columns,
        row_ids_B=_cat([torch.from_numpy(rows.row_ids_R[start:stop]) for rows, start, stop in spans]),
        event_times_s_B=_cat([torch.from_numpy(rows.event_times_s_R[start:stop]) for rows, start, stop in spans]),
        num_rows=sum(stop - start for _, start, stop in spans),
        global_rows=global_rows,
    )


def _joined(parts: Sequence[Column]) -> Column:
    if len(parts) == 1:
        return parts[0]
    nulls = None
    if any(part.nulls_N is not None for part in parts):
        nulls = torch.cat(
            [torch.zeros(len(p.values_N), dtype=torch.bool) if p.nulls_N is None else p.nulls_N for p in parts]
        )
    lengths = [part.lengths_B for part in parts if part.lengths_B is not None]
    return Column(
        values_N=torch.cat([part.values_N for part in parts]),
        nulls_N=nulls,
        lengths_B=torch.cat(lengths) if lengths else None,
    )


def _cat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
