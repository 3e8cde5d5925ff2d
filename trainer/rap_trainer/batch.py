"""Batches as they travel: raw columns from a source, preprocessed inputs for the model.

Shapes: B rows of this rank, N elements of a jagged column, F sparse features, D dense features.
Values only; nothing here reads, computes or moves anything by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


@dataclass(frozen=True, kw_only=True)
class Column:
    """One raw column: scalar (`lengths_B` is None) or jagged.

    A null row of a jagged column is a list with one null element, so that nulls live in one place.
    """

    values_N: torch.Tensor
    """[B] of a scalar column, [N] of a jagged one; the value under a null is arbitrary but initialised."""
    nulls_N: torch.Tensor | None = None
    """bool, True where null; None: no nulls."""
    lengths_B: torch.Tensor | None = None
    """int32 list lengths; None: a scalar column."""

    def map(self, move: object) -> Column:
        """The column with each tensor passed through `move`, a function of a tensor."""
        assert callable(move)
        return Column(
            values_N=move(self.values_N),
            nulls_N=None if self.nulls_N is None else move(self.nulls_N),
            lengths_B=None if self.lengths_B is None else move(self.lengths_B),
        )


@dataclass(frozen=True, order=True)
class Position:
    """The next record of a unit (a file, a partition) that has not been consumed yet."""

    offset: int
    """File: row, or -1 when all are consumed. Kafka: offset of the message."""
    row: int = 0
    """Kafka: row within the message. File: its place in the order in which files are read."""


Positions = Mapping[str, Position]
"""By unit: file name relative to the source's directory, or `topic/partition`."""


@dataclass(frozen=True, kw_only=True)
class RawBatch:
    """This rank's rows of one step, as the source delivered them."""

    columns: Mapping[str, Column]
    """By name: every input of a feature, its weights, and the label."""
    row_ids_B: torch.Tensor
    """int64: identity of a row, equal wherever and whenever the row is read (for `sample`)."""
    event_times_s_B: torch.Tensor
    """float64 seconds since the epoch; NaN where the event carries none."""
    num_rows: int
    global_rows: int
    """Rows of all ranks in this step: what the loss is averaged over."""

    def map(self, move: object) -> RawBatch:
        """The batch with each tensor passed through `move`, a function of a tensor."""
        assert callable(move)
        return replace(
            self,
            columns={name: column.map(move) for name, column in self.columns.items()},
            row_ids_B=move(self.row_ids_B),
            event_times_s_B=move(self.event_times_s_B),
        )


@dataclass(frozen=True, kw_only=True)
class ModelBatch:
    """What the model consumes: the preprocessed form of a RawBatch."""

    dense_BD: torch.Tensor
    """float32."""
    sparse: KeyedJaggedTensor
    """Keys in feature order; int64 values, int32 lengths, float32 weights if any feature has them."""
    labels_B: torch.Tensor
    """float32, 0 or 1."""
    global_rows: int
    event_times_s_B: torch.Tensor
    counters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """int64 scalars on the device, such as `bucketize_nan`; read them rarely."""
