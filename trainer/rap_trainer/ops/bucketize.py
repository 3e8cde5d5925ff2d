"""bucketize: the index of the interval a number falls in. Borders ascend; a repeated one is a step further."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from rap_contract.ops.bucketize import Bucketize

from rap_trainer.ops.value import Context, Dense, References, Value, elements

INT64_MIN, INT64_MAX = -(2.0**63), math.nextafter(2.0**63, 0)  # as floats: the outermost that fit


def apply(op: Bucketize, value: Value, references: References, context: Context) -> Value:
    """int32 indexes 0..len(borders). Counts NaN that is not null as `bucketize_nan`."""
    del references
    values_N = elements(value)
    if not values_N.is_floating_point():
        return value.with_values(_integers(op, values_N.to(torch.int64), context))
    right = op.side == "right"
    borders_K = context.constant(op, "borders", values_N, lambda: op.borders)
    index_N = torch.bucketize(values_N, borders_K, out_int32=True, right=right)
    if not right and context.once(op, ("repeats", values_N.dtype), lambda: _repeat(op.borders, values_N.dtype)):
        index_N = index_N + _steps(index_N, values_N, borders_K)
    nan_N = values_N.isnan()
    nulls_B = value.nulls_B if isinstance(value, Dense) else None
    context.count("bucketize_nan", (nan_N if nulls_B is None else nan_N & ~nulls_B).sum())
    return value.with_values(index_N.masked_fill(nan_N, 0))


def _integers(op: Bucketize, values_N: torch.Tensor, context: Context) -> torch.Tensor:
    """Exact comparison: for whole x, border < x is floor(border) < x, and border <= x is ceil(border) <= x."""
    inside, below = context.once(op, "inside", lambda: _inside(op.borders))
    if not inside:
        return torch.full_like(values_N, below, dtype=torch.int32)
    ceil_K = context.constant(op, "ceil", values_N, lambda: [math.ceil(border) for border in inside])
    if op.side == "right":
        return torch.bucketize(values_N, ceil_K, out_int32=True, right=True).add_(below)
    floor_K = context.constant(op, "floor", values_N, lambda: [math.floor(border) for border in inside])
    index_N = torch.bucketize(values_N, floor_K, out_int32=True)
    if context.once(op, ("repeats", values_N.dtype), lambda: _repeat(op.borders, torch.float64)):
        index_N = index_N + _steps(index_N, values_N, ceil_K)
    return index_N.add_(below)


def _inside(borders: Sequence[float]) -> tuple[list[float], int]:
    """Borders that an int64 can meet, and the number of those below all of them."""
    inside = [border for border in borders if INT64_MIN <= border <= INT64_MAX]
    return inside, sum(border < INT64_MIN for border in borders)


def _repeat(borders: Sequence[float], dtype: torch.dtype) -> bool:
    """Whether a border comes twice once rounded."""
    rounded_K = torch.tensor(borders, dtype=dtype)
    return bool((rounded_K[1:] == rounded_K[:-1]).any())


def _steps(index_N: torch.Tensor, values_N: torch.Tensor, borders_K: torch.Tensor) -> torch.Tensor:
    """1 where x reaches the border after its own, which then repeats; else 0."""
    last = borders_K.numel() - 1
    next_N = borders_K[(index_N + 1).clamp_(max=last)]
    return ((index_N < last) & (values_N >= next_N)).to(torch.int32)
