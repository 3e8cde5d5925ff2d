"""id_overlap_count: sum over ids of min(count in one, count in the other)."""

from __future__ import annotations

from rap_contract.ops.id_overlap_count import IdOverlapCount

from rap_trainer.ops.overlap import groups, overlap_count
from rap_trainer.ops.value import Context, Dense, References, Value


def apply(op: IdOverlapCount, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    found = groups(value, references[op.match])
    return found.result(overlap_count(found))
