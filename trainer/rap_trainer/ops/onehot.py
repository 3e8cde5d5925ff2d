"""onehot: `classes` zeros a number with a one at trunc((x - low) / step); outside, and NaN: class 0."""

from __future__ import annotations

from dataclasses import replace

import torch
from rap_contract.ops.onehot import Onehot

from rap_trainer.ops.nulls import drop_rows
from rap_trainer.ops.value import Context, Dense, Jagged, References, Value, elements


def apply(op: Onehot, value: Value, references: References, context: Context) -> Jagged:
    """Lists of len * classes; an element's weight goes with each of its classes."""
    del references
    values_N = elements(value)
    if values_N.dtype is not torch.float64:
        values_N = values_N.to(torch.float32)
    step_1 = context.constant(
        op, "step", values_N, lambda: [(op.high - op.low) / op.classes]
    )  # CUDA divides exactly by tensors only
    index_N = values_N.sub(op.low).div_(step_1).trunc_()
    index_N = torch.where((index_N >= 0) & (index_N < op.classes), index_N, 0).to(torch.int64)
    dtype = torch.float32 if op.dtype == "float32" else torch.int64
    classes_K = torch.arange(op.classes, device=values_N.device)
    ones_M = (index_N.unsqueeze(1) == classes_K).to(dtype).flatten()
    if isinstance(value, Jagged):
        weights_N = None if value.weights_N is None else value.weights_N.repeat_interleave(op.classes)
        return replace(value, values_N=ones_M, lengths_B=value.lengths_B * op.classes, weights_N=weights_N)
    return _of_numbers(value, ones_M, op.classes)


def _of_numbers(value: Dense, ones_M: torch.Tensor, classes: int) -> Jagged:
    lengths_B = torch.full_like(value.values_B, classes, dtype=torch.int32)
    lists = Jagged(values_N=ones_M, lengths_B=lengths_B)
    if value.nulls_B is None:
        return lists
    return replace(drop_rows(lists, value.nulls_B), nulls_B=value.nulls_B)
