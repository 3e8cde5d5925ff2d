"""jaccard: c / (len a + len b - c) with c = id_overlap_count, divided in float64; NaN if both lists are empty."""

from __future__ import annotations

import torch
from rap_contract.ops.jaccard import Jaccard

from rap_trainer.ops.overlap import groups, overlap_count
from rap_trainer.ops.value import Context, Dense, Jagged, References, Value


def apply(op: Jaccard, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    other = references[op.match]
    assert isinstance(value, Jagged)
    assert isinstance(other, Jagged)
    found = groups(value, other)
    common_B = overlap_count(found).to(torch.float64)
    return found.result(common_B / (value.lengths_B + other.lengths_B - common_B))
