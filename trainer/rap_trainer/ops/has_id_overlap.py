"""has_id_overlap: 1 if a row's lists share an id, else 0."""

from __future__ import annotations

from rap_contract.ops.has_id_overlap import HasIdOverlap

from rap_trainer.ops.overlap import groups, overlap_count
from rap_trainer.ops.value import Context, Dense, References, Value


def apply(op: HasIdOverlap, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    found = groups(value, references[op.match])
    return found.result(overlap_count(found) > 0)
