"""Decoded rows on the host: columns that are sliced and joined without touching single rows.

A source keeps many of these and cuts batches from them. No bad row is in here, and nothing here
knows where rows come from. Shapes: R rows, N elements of a jagged column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rap_trainer.batch import Column, RawBatch

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ColumnRows:
    """One column of many rows. The memory may belong to Arrow: never write into it."""

    values: torch.Tensor
    """[R] of a scalar column or one whose lists all have length 1, [N] of any other."""
    nulls: torch.Tensor | None = None
    """bool per value, True where null."""
    offsets_R1: Int64s | None = None
    """Where each row's list begins in `values`, and the end; None where every row has one value."""
    is_list: bool = False
    """The declared type is a list."""

    @property
    def num_bytes(self) -> int:
        total = self.values.nbytes + (0 if self.nulls is None else self.nulls.nbytes)
        return total + (0 if self.offsets_R1 is None else self.offsets_R1.nbytes)

    def slice(self, start: int, stop: int) -> ColumnRows:
        """Rows [start, stop) as a view."""
        offsets = self.offsets_R1
        if offsets is None:
            first, last = start, stop
        else:
            offsets = offsets[start : stop + 1]
            first, last = int(offsets[0]), int(offsets[-1])
            offsets = offsets - first if first else offsets
        return ColumnRows(
            values=self.values[first:last],
            nulls=None if self.nulls is None else self.nulls[first:last],
            offsets_R1=offsets,
            is_list=self.is_list,
        )

    def column(self, ones_R: torch.Tensor) -> Column:
        """As a batch column; `ones_R` (int32) serves as the lengths of lists of length 1."""
        lengths = None
        if self.is_list:
            lengths = ones_R
            if self.offsets_R1 is not None:
                lengths = torch.from_numpy(np.diff(self.offsets_R1).astype(np.int32))
        return Column(values_N=self.values, nulls_N=self.nulls, lengths_B=lengths)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Good rows of one piece of a stream."""

    columns: Mapping[str, ColumnRows]
    row_ids_R: torch.Tensor
    """int64."""
    event_times_s_R: torch.Tensor
    """float64; NaN where unknown."""

    @property
    def num_rows(self) -> int:
        return self.row_ids_R.shape[0]

    @property
    def num_bytes(self) -> int:
        own = self.row_ids_R.nbytes + self.event_times_s_R.nbytes
        return own + sum(column.num_bytes for column in self.columns.values())

    def slice(self, start: int, stop: int) -> Rows:
        """Rows [start, stop) as views."""
        if start == 0 and stop == self.num_rows:
            return self
        return Rows(
            columns={name: column.slice(start, stop) for name, column in self.columns.items()},
            row_ids_R=self.row_ids_R[start:stop],
            event_times_s_R=self.event_times_s_R[start:stop],
        )

    def batch(self, global_rows: int) -> RawBatch:
        """As this rank's part of a step of `global_rows` rows."""
        ones_R = torch.ones(self.num_rows, dtype=torch.int32)
        return RawBatch(
            columns={name: column.column(ones_R) for name, column in self.columns.items()},
            row_ids_B=self.row_ids_R,
            event_times_s_B=self.event_times_s_R,
            num_rows=self.num_rows,
            global_rows=global_rows,
        )


def join(pieces: Sequence[Rows]) -> Rows:
    """All rows of `pieces` (at least one, with the same columns) in order; one piece is returned as it is."""
    if len(pieces) == 1:
        return pieces[0]
    return Rows(
        columns={name: _join_column([piece.columns[name] for piece in pieces]) for name in pieces[0].columns},
        row_ids_R=torch.cat([piece.row_ids_R for piece in pieces]),
        event_times_s_R=torch.cat([piece.event_times_s_R for piece in pieces]),
    )


def _join_column(parts: Sequence[ColumnRows]) -> ColumnRows:
    nulls = None
    if any(part.nulls is not None for part in parts):
        nulls = torch.cat(
            [torch.zeros(len(part.values), dtype=torch.bool) if part.nulls is None else part.nulls for part in parts]
        )
    offsets = None
    if any(part.offsets_R1 is not None for part in parts):
        lengths = [
            np.ones(len(part.values), np.int64) if part.offsets_R1 is None else np.diff(part.offsets_R1)
            for part in parts
        ]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    return ColumnRows(
        values=torch.cat([part.values for part in parts]),
        nulls=nulls,
        offsets_R1=offsets,
        is_list=parts[0].is_list,
    )
