"""The obvious way to score predictions, in float64 over all rows at once: what the sketches are compared with."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def normalized_entropy(logits: Floats, labels: Floats) -> float:
    """Mean log loss over the entropy of the click rate (He et al., 2014, section 3)."""
    rate = float(labels.mean())
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    return log_loss(logits, labels) / entropy


def log_loss(logits: Floats, labels: Floats) -> float:
    return float(np.mean(np.logaddexp(0.0, np.where(labels == 1, -logits, logits))))


def calibration(logits: Floats, labels: Floats) -> float:
    return float(np.sum(1 / (1 + np.exp(-logits))) / np.sum(labels))


def auc(logits: Floats, labels: Floats) -> float:
    """Share of (click, non-click) pairs in which the click scores higher, ties counted half: every pair looked at."""
    clicks, others = logits[labels == 1], logits[labels == 0]
    won = np.sum(clicks[:, None] > others[None, :]) + 0.5 * np.sum(clicks[:, None] == others[None, :])
    return float(won) / (len(clicks) * len(others))
