"""get_max_count: sum over common ids of max(count in one, count in the other)."""

from __future__ import annotations

import torch
from rap_contract.ops.get_max_count import GetMaxCount

from rap_trainer.ops.overlap import groups
from rap_trainer.ops.value import Context, Dense, References, Value


def apply(op: GetMaxCount, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    found = groups(value, references[op.match])
    first_G, second_G = found.count(found.group_of_first), found.count(found.group_of_second)
    both_G = (first_G > 0) & (second_G > 0)
    return found.result(found.by_row(torch.maximum(first_G, second_G) * both_G))
