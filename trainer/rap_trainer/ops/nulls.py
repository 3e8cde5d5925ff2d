"""The end of element nulls in a chain: a row is null, or its null elements are absent."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from rap_trainer.ops import segments
from rap_trainer.ops.segments import from_starts, offsets_of, select, size_of, take
from rap_trainer.ops.value import Jagged


def collapse(value: Jagged, mode: Literal["propagate", "skip"], partner: Jagged | None = None) -> Jagged:
    """The lists without null elements; null too where `partner`, a parallel list, is null.

    propagate: a row with a null element is null, its list empty. skip: null elements are removed.
    """
    nulls_N = value.nulls_N
    if partner is not None:
        _check_parallel(value, partner)
    if partner is not None and partner.nulls_N is not None:
        nulls_N = partner.nulls_N if nulls_N is None else nulls_N | partner.nulls_N
    if nulls_N is None:
        return value
    if mode == "skip":
        return select(value, ~nulls_N)
    offsets_R = offsets_of(value.lengths_B)
    before_R = torch.zeros(nulls_N.numel() + 1, dtype=torch.int32, device=nulls_N.device)
    torch.cumsum(nulls_N, 0, dtype=torch.int32, out=before_R[1:])
    nulls_B = before_R[offsets_R].diff() > 0
    return replace(drop_rows(value, nulls_B), nulls_B=nulls_B)


def _check_parallel(value: Jagged, partner: Jagged) -> None:
    """ValueError where two lists cannot run parallel, as far as the host can tell."""
    ids, scores = value.values_N.numel(), partner.values_N.numel()
    if ids != scores or (
        segments.host_may_look(value.lengths_B) and not torch.equal(value.lengths_B, partner.lengths_B)
    ):
        raise ValueError(
            f"ids and their scores have lists of different lengths in this batch: {ids} and {scores} in all"
        )


def drop_rows(value: Jagged, drop_B: torch.Tensor) -> Jagged:
    """The same rows, those of `drop_B` with empty lists."""
    lengths_B = value.lengths_B.masked_fill(drop_B, 0)
    size = size_of(lengths_B, value.values_N.numel())
    index_M = from_starts(offsets_of(value.lengths_B)[:-1], lengths_B, size)
    return replace(take(value, index_M, lengths_B), nulls_N=None)
