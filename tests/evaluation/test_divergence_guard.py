"""The guard: what counts as divergence, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.evaluation import Evaluation, Scores, check

SOUND = Scores(
    rows=1000,
    positives=30,
    nonfinite_rows=0,
    log_loss=0.12,
    normalized_entropy=0.9,
    auc=0.7,
    auc_error=0.0,
    calibration=1.0,
)


def evaluation(*, full: bool = True, **window: object) -> Evaluation:
    return Evaluation(window=replace(SOUND, **window), life=SOUND, window_full=full)  # type: ignore[arg-type]


def test_a_sound_model_passes() -> None:
    assert check(evaluation(), EvaluationSpec(max_normalized_entropy=1.2)) is None


def test_a_full_window_above_the_limit_is_divergence_and_says_the_numbers() -> None:
    divergence = check(evaluation(normalized_entropy=1.25), EvaluationSpec(max_normalized_entropy=1.2))
    assert divergence is not None
    assert divergence.reason == "normalized_entropy"
    assert "normalized entropy 1.2500 over the last 1000 rows is above 1.2" in str(divergence)


@pytest.mark.parametrize(
    ("window", "limit"),
    [
        ({"normalized_entropy": 1.25, "full": False}, 1.2),
        ({"normalized_entropy": 1.2}, 1.2),
        ({"normalized_entropy": 99.0}, None),
        ({"normalized_entropy": None}, 1.2),
    ],
    ids=["window not full", "exactly the limit", "no limit", "undefined: one label only"],
)
def test_it_is_no_divergence(window: dict[str, object], limit: float | None) -> None:
    assert check(evaluation(**window), EvaluationSpec(max_normalized_entropy=limit)) is None  # type: ignore[arg-type]


def test_a_prediction_that_is_no_number_is_divergence_at_once_and_without_a_limit() -> None:
    divergence = check(evaluation(nonfinite_rows=24, full=False), EvaluationSpec())
    assert divergence is not None
    assert divergence.reason == "nonfinite"
    assert "NaN or Inf on 24 of the last 1024 rows" in str(divergence)
    assert "lower the learning rates" in str(divergence)
