"""Raw columns of a batch become values of the graph, checked against their declared types.

Checks only what the host knows without waiting for a device.
"""

from __future__ import annotations

import torch
from rap_contract.types import Dtype, ValueType

from rap_trainer.batch import Column, RawBatch
from rap_trainer.ops import segments
from rap_trainer.ops.value import Dense, Jagged, Value

TORCH_DTYPES = {
    Dtype.INT32: torch.int32,
    Dtype.INT64: torch.int64,
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT64: torch.float64,
}


class BatchError(ValueError):
    """A batch is not what its source promised; the message names the column."""


def bind(raw: RawBatch, name: str, declared: ValueType, weights: str | None = None) -> Value:
    """A raw column as a value; raises BatchError where it is missing or of another shape or type.

    A null weight counts as 1.
    """
    column = raw.columns.get(name)
    if column is None:
        raise BatchError(f"column {name} is missing from the batch; the source delivers {', '.join(raw.columns)}")
    dtype = TORCH_DTYPES[declared.dtype]
    if column.values_N.dtype is not dtype:
        raise BatchError(f"column {name} is declared {declared}, its values are {column.values_N.dtype}")
    if not declared.is_list:
        if column.lengths_B is not None or column.values_N.numel() != raw.num_rows:
            raise BatchError(f"column {name} is declared {declared}: one value for each of {raw.num_rows} rows")
        return Dense(values_B=column.values_N, nulls_B=column.nulls_N)
    if column.lengths_B is None or column.lengths_B.numel() != raw.num_rows:
        raise BatchError(f"column {name} is declared {declared}: one length for each of {raw.num_rows} rows")
    return Jagged(
        values_N=column.values_N,
        lengths_B=column.lengths_B,
        nulls_N=column.nulls_N,
        weights_N=None if weights is None else _weights(raw, name, column, weights),
    )


def _weights(raw: RawBatch, name: str, ids: Column, weights: str) -> torch.Tensor:
    column = raw.columns.get(weights)
    if column is None or column.lengths_B is None or column.values_N.dtype is not torch.float32:
        raise BatchError(f"weights {weights} of {name} are missing from the batch, or not list<float32>")
    assert ids.lengths_B is not None
    if column.values_N.numel() != ids.values_N.numel() or (
        segments.host_may_look(column.lengths_B) and not torch.equal(column.lengths_B, ids.lengths_B)
    ):
        raise BatchError(f"weights {weights} and ids {name} have lists of different lengths in the same row")
    return column.values_N if column.nulls_N is None else column.values_N.masked_fill(column.nulls_N, 1.0)
