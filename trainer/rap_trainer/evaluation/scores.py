"""How good a model is, as plain numbers. Values only: no tensors, nothing is computed from data here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Quality over some rows, each scored before it was learned from. None: undefined on those rows."""

    rows: int
    """Rows scored, those with a NaN or infinite logit left out."""
    positives: int
    """Rows with label 1."""
    nonfinite_rows: int
    """Rows whose logit was NaN or infinite; they enter no other number."""
    log_loss: float | None
    """Mean log loss in nats; None without rows."""
    normalized_entropy: float | None
    """Log loss over the entropy of the empirical click rate; below 1 is better than knowing only that rate.
    None without rows of both labels."""
    auc: float | None
    """Area under the ROC curve, ties counted half; None without rows of both labels."""
    auc_error: float | None
    """Largest possible distance of `auc` from the exact one, from binning."""
    calibration: float | None
    """Sum of predictions over sum of labels; 1 is perfect; None without a positive row."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of all ranks over the sliding window and over the life of the job."""

    window: Scores
    life: Scores
    window_full: bool
    """The window holds at least `evaluation.windowRows` rows."""
