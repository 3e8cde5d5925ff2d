"""fill_null: nulls become a value. Element nulls before the collapse; rows after it, as lists of one."""

from __future__ import annotations

from dataclasses import replace

import torch
from rap_contract.ops.fill_null import FillNull

from rap_trainer.ops.segments import offsets_of, places, size_of
from rap_trainer.ops.value import Context, Dense, Jagged, References, Value


def apply(op: FillNull, value: Value, references: References, context: Context) -> Value:
    """`value` without nulls; weights of new elements are 1."""
    del references, context
    if isinstance(value, Dense):
        return Dense(values_B=_filled(op, value.values_B, value.nulls_B))
    filled = replace(value, values_N=_filled(op, value.values_N, value.nulls_N), nulls_N=None)
    return filled if filled.nulls_B is None else _with_one_element(op, filled, filled.nulls_B)


def _filled(op: FillNull, values_N: torch.Tensor, nulls_N: torch.Tensor | None) -> torch.Tensor:
    if op.nan:
        nan_N = values_N.isnan()
        nulls_N = nan_N if nulls_N is None else nulls_N | nan_N
    return values_N if nulls_N is None else _select(values_N, nulls_N, _filler(op, values_N))


def _select(values_N: torch.Tensor, nulls_N: torch.Tensor, filler: float | int) -> torch.Tensor:
    """`masked_fill` on the numbers' bits: on CPU three times as fast (0.8 against 2.3 ns an int64, one Xeon core)."""
    word = torch.int32 if values_N.element_size() == 4 else torch.int64
    keep_N = nulls_N.view(torch.int8).sub(1).to(word)  # all ones, or 0 for a null
    filled_N = keep_N.bitwise_and_(values_N.view(word))
    bits = int(torch.tensor(filler, dtype=values_N.dtype).view(word))
    if bits:
        filled_N.add_(nulls_N.to(word), alpha=bits)
    return filled_N.view(values_N.dtype)


def _filler(op: FillNull, values_N: torch.Tensor) -> float | int:
    return float(op.value) if values_N.is_floating_point() else int(op.value)


def _with_one_element(op: FillNull, value: Jagged, nulls_B: torch.Tensor) -> Jagged:
    """Null rows as lists of one element."""
    lengths_B = value.lengths_B + nulls_B
    rows_M, positions_M = places(lengths_B, size_of(lengths_B, value.values_N.numel() + nulls_B.numel()))
    new_M = nulls_B[rows_M]
    padded_N = torch.nn.functional.pad(value.values_N, (0, 1))
    index_M = (offsets_of(value.lengths_B)[rows_M] + positions_M).clamp_(0, value.values_N.numel())
    weights_N = None
    if value.weights_N is not None:
        weights_N = torch.nn.functional.pad(value.weights_N, (0, 1))[index_M].masked_fill(new_M, 1.0)
    return Jagged(
        values_N=padded_N[index_M].masked_fill(new_M, _filler(op, value.values_N)),
        lengths_B=lengths_B,
        weights_N=weights_N,
    )
