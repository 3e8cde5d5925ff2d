"""cosine: cosine of the scores summed per id, in float64; 0 when either side has no length."""

from __future__ import annotations

from rap_contract.ops.cosine import Cosine

from rap_trainer.ops.overlap import aligned_scores, groups
from rap_trainer.ops.value import Context, Dense, References, Value


def apply(op: Cosine, value: Value, references: References, context: Context) -> Dense:
    """float32 [B]; null where either list is."""
    del context
    match = references[op.match]
    found = groups(value, match, references[op.id_scores], references[op.match_scores])
    first_G = found.sum(found.group_of_first, aligned_scores(value, references[op.id_scores]))
    second_G = found.sum(found.group_of_second, aligned_scores(match, references[op.match_scores]))
    dot_B = found.by_row(first_G * second_G)
    norm_B = found.by_row(first_G.square()).sqrt() * found.by_row(second_G.square()).sqrt()
    return found.result((dot_B / norm_B).masked_fill(norm_B == 0, 0))
