"""score_min: min of the scores of those elements of match whose id is in the list, 0 without one."""

from __future__ import annotations

from rap_contract.ops.score_min import ScoreMin

from rap_trainer.ops.overlap import extreme_score
from rap_trainer.ops.value import Context, Dense, References, Value


def apply(op: ScoreMin, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    return extreme_score(op, value, references, "amin")
