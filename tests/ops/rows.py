"""Columns of Python rows as values of the twins and back, with the padding of an accelerator if asked for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from ops.reference import Rows
from rap_trainer.ops.segments import offsets_of
from rap_trainer.ops.value import Dense, Jagged, Value

GARBAGE = 3  # behind the last list; in range for every type


def to_value(column: Rows, *, raw: bool = False, padding: int = 0, device: str = "cpu") -> Value:
    """The rows as tensors; `raw` lists hold null elements, others null rows."""
    dtype = getattr(torch, column.dtype)
    if not column.is_list:
        nulls_B = torch.tensor([x is None for x in column.rows], dtype=torch.bool, device=device)
        values_B = torch.tensor([GARBAGE if x is None else x for x in column.rows], dtype=dtype, device=device)
        return Dense(values_B=values_B, nulls_B=nulls_B if None in column.rows else None)
    lists = [[] if row is None else row for row in column.rows]
    flat = [x for row in lists for x in row] + [GARBAGE] * padding
    nulls_N = torch.tensor([x is None for x in flat], dtype=torch.bool, device=device)
    nulls_B = torch.tensor([row is None for row in column.rows], dtype=torch.bool, device=device)
    weights = None
    if column.weights is not None:
        weights = [w for row in column.weights for w in row] + [0.5] * padding
    return Jagged(
        values_N=torch.tensor([GARBAGE if x is None else x for x in flat], dtype=dtype, device=device),
        lengths_B=torch.tensor([len(row) for row in lists], dtype=torch.int32, device=device),
        nulls_N=nulls_N if raw and None in flat else None,
        nulls_B=nulls_B if not raw and None in column.rows else None,
        weights_N=None if weights is None else torch.tensor(weights, dtype=torch.float32, device=device),
    )


def to_rows(value: Value) -> Rows:
    """The tensors as rows."""
    if isinstance(value, Dense):
        numbers = value.values_B.tolist()
        if value.nulls_B is not None:
            numbers = [None if null else x for x, null in zip(numbers, value.nulls_B.tolist(), strict=True)]
        return Rows(numbers, False, str(value.values_B.dtype).removeprefix("torch."))
    assert value.lengths_B.dtype is torch.int32
    offsets = offsets_of(value.lengths_B).tolist()
    flat = value.values_N.tolist()
    rows: list[list[Any] | None] = [flat[start:end] for start, end in pairwise(offsets)]
    if value.nulls_B is not None:
        nulls = value.nulls_B.tolist()
        assert all(not row for row, null in zip(rows, nulls, strict=True) if null), "a null row has no elements"
        rows = [None if null else row for row, null in zip(rows, nulls, strict=True)]
    weights = None
    if value.weights_N is not None:
        assert value.weights_N.numel() == value.values_N.numel()
        flat = value.weights_N.tolist()
        weights = [flat[start:end] for start, end in pairwise(offsets)]
    return Rows(rows, True, str(value.values_N.dtype).removeprefix("torch."), weights)


def assert_same(actual: Rows, expected: Rows, *, tolerance: float = 0.0) -> None:
    """Equal rows; floats within a relative and absolute tolerance, NaN equal to NaN."""
    assert actual.is_list == expected.is_list
    assert actual.dtype == expected.dtype
    assert len(actual.rows) == len(expected.rows)
    for i, (got, wanted) in enumerate(zip(actual.rows, expected.rows, strict=True)):
        if not actual.is_list:
            assert _close(got, wanted, tolerance), f"row {i}: {got} is not {wanted}"
            continue
        assert (got is None) == (wanted is None), f"row {i}: {got} is not {wanted}"
        if got is None:
            continue
        assert len(got) == len(wanted), f"row {i}: {got} is not {wanted}"
        assert all(map(_close, got, wanted, [tolerance] * len(got))), f"row {i}: {got} is not {wanted}"
    if actual.is_list:
        assert (actual.weights is None) == (expected.weights is None)
    for got, wanted in zip(actual.weights or [], expected.weights or [], strict=True):
        assert len(got) == len(wanted)
        assert all(map(_close, got, wanted, [1e-6] * len(got))), f"weights {got} are not {wanted}"


def _close(got: float | None, wanted: float | None, tolerance: float) -> bool:
    if got is None or wanted is None:
        return got is wanted
    if got == wanted or (got != got and wanted != wanted):
        return True
    return abs(got - wanted) <= tolerance * max(1.0, abs(wanted)) and abs(wanted) != float("inf")
