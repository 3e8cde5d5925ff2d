"""score_sum: sum of the scores of those elements of match whose id is in the list, in float64."""

from __future__ import annotations

from rap_contract.ops.score_sum import ScoreSum

from rap_trainer.ops.overlap import aligned_scores, groups
from rap_trainer.ops.value import Context, Dense, References, Value


def apply(op: ScoreSum, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    match = references[op.match]
    found = groups(value, match, references[op.scores])
    scores_N = aligned_scores(match, references[op.scores])
    present_G = found.count(found.group_of_first) > 0
    return found.result(found.by_row(found.sum(found.group_of_second, scores_N).masked_fill(~present_G, 0)))
