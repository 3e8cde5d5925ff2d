"""The divergence guard: a pure decision on scores. What follows (exit 5 or rollback) is the trainer's part."""

from __future__ import annotations

from dataclasses import dataclass

from rap_contract.training import Evaluation as EvaluationSpec

from rap_trainer.evaluation.scores import Evaluation


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Why the model counts as diverged."""

    reason: str
    """`nonfinite` or `normalized_entropy`: a label of the metric."""
    message: str
    """A sentence with the numbers."""
    hint: str

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


def check(evaluation: Evaluation, spec: EvaluationSpec) -> Divergence | None:
    """None for a sound model. NaN and Inf count at once, normalized entropy only after a full window."""
    window = evaluation.window
    if window.nonfinite_rows:
        seen = window.rows + window.nonfinite_rows
        return Divergence(
            reason="nonfinite",
            message=f"the model predicted NaN or Inf on {window.nonfinite_rows} of the last {seen} rows",
            hint="lower the learning rates, or bound the dense features with clamp or logit",
        )
    limit, entropy = spec.max_normalized_entropy, window.normalized_entropy
    if limit is None or entropy is None or not evaluation.window_full or entropy <= limit:
        return None
    return Divergence(
        reason="normalized_entropy",
        message=f"normalized entropy {entropy:.4f} over the last {window.rows} rows is above {limit:g}",
        hint="the model is worse than its click rate alone: look for a change in the data, or lower the learning rates",
    )
