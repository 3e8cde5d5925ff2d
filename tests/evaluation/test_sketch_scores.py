"""A sketch scores predictions as looking at every pair of rows would, within the error it states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from evaluation import scoring_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.evaluation import Scores, sketch

CPU = torch.device("cpu")
FINITE = st.floats(min_value=-30, max_value=30, width=32)
ROWS = st.lists(st.tuples(FINITE, st.booleans()), min_size=1, max_size=60)
PARTS = st.lists(ROWS, min_size=3, max_size=3)


def sketch_of(rows: list[tuple[float, bool]]) -> torch.Tensor:
    cells = sketch.empty(CPU)
    logits = torch.tensor([logit for logit, _ in rows], dtype=torch.float32)
    sketch.accumulate(cells, logits, torch.tensor([label for _, label in rows], dtype=torch.float32))
    return cells


def scores_of(logits: torch.Tensor, labels: torch.Tensor) -> Scores:
    cells = sketch.empty(CPU)
    sketch.accumulate(cells, logits, labels)
    return sketch.scores(cells)


@settings(deadline=None, max_examples=50)
@given(rows=ROWS)
def test_scores_agree_with_the_obvious_computation(rows: list[tuple[float, bool]]) -> None:
    logits = np.array([logit for logit, _ in rows])
    labels = np.array([float(label) for _, label in rows])
    scores = sketch.scores(sketch_of(rows))
    assert scores.rows == len(rows)
    assert scores.positives == int(labels.sum())
    assert scores.log_loss == pytest.approx(reference.log_loss(logits, labels), rel=1e-5, abs=1e-12)
    if 0 < labels.sum() < len(rows):
        assert scores.normalized_entropy == pytest.approx(reference.normalized_entropy(logits, labels), rel=1e-5)
        assert scores.auc is not None
        assert scores.auc_error is not None
        assert abs(scores.auc - reference.auc(logits, labels)) <= scores.auc_error + 1e-12
    if labels.sum() > 0:
        assert scores.calibration == pytest.approx(reference.calibration(logits, labels), rel=1e-5)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**31), bias=st.floats(-4, 1), spread=st.floats(0.5, 3))
def test_the_auc_of_a_usual_model_is_within_a_thousandth(seed: int, bias: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = bias + spread * torch.randn(3000, generator=generator)
    labels = (torch.rand(3000, generator=generator) < torch.sigmoid(logits)).float()
    labels[:2] = torch.tensor([0.0, 1.0])
    scores = scores_of(logits, labels)
    assert scores.auc is not None
    assert scores.auc_error is not None
    exact = reference.auc(logits.double().numpy(), labels.double().numpy())
    assert abs(scores.auc - exact) <= scores.auc_error < 2e-3
    assert scores.auc == pytest.approx(exact, abs=1e-3)


@settings(deadline=None, max_examples=50)
@given(parts=PARTS)
def test_merging_does_not_depend_on_order_or_grouping(parts: list[list[tuple[float, bool]]]) -> None:
    a, b, c = map(sketch_of, parts)
    whole = sketch_of([row for part in parts for row in part])
    for merged in (a + (b + c), (a + b) + c, c + b + a):
        assert torch.equal(merged[2:], whole[2:]), "counts are exact"
        torch.testing.assert_close(merged[:2], whole[:2], rtol=1e-6, atol=1e-9)
    assert torch.equal(a + b, b + a)


def test_no_rows_have_no_scores() -> None:
    scores = scores_of(torch.empty(0), torch.empty(0))
    assert (scores.rows, scores.positives, scores.nonfinite_rows) == (0, 0, 0)
    assert (scores.log_loss, scores.normalized_entropy, scores.auc, scores.calibration) == (None, None, None, None)


@pytest.mark.parametrize("label", [0.0, 1.0], ids=["no click", "clicks only"])
def test_rows_of_one_label_have_a_loss_but_no_entropy_and_no_auc(label: float) -> None:
    scores = scores_of(torch.tensor([0.3, -0.7]), torch.full((2,), label))
    assert scores.log_loss is not None
    assert scores.normalized_entropy is None
    assert scores.auc is None
    assert (scores.calibration is None) == (label == 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_logit_that_is_no_number_is_counted_and_leaves_the_scores_alone(bad: float) -> None:
    logits, labels = torch.tensor([0.5, bad, -2.0]), torch.tensor([1.0, 1.0, 0.0])
    scores, without = scores_of(logits, labels), scores_of(logits[[0, 2]], labels[[0, 2]])
    assert scores.nonfinite_rows == 1
    assert (scores.rows, scores.log_loss, scores.auc) == (without.rows, without.log_loss, without.auc)
    assert scores.calibration == without.calibration


def test_a_model_that_knows_only_the_click_rate_has_an_entropy_of_one() -> None:
    labels = torch.zeros(1000)
    labels[:28] = 1.0
    scores = scores_of(torch.full((1000,), float(np.log(0.028 / 0.972))), labels)
    assert scores.normalized_entropy == pytest.approx(1.0, abs=1e-6)
    assert scores.calibration == pytest.approx(1.0, abs=1e-6)
    assert scores.auc == 0.5
    assert scores.auc_error == 0.5, "all rows share a bin, so nothing is known of their order"


@pytest.mark.parametrize("logit", [40.0, -40.0, 3e38, -3e38])
def test_extreme_logits_stay_exact_where_a_logarithm_of_a_probability_would_not(logit: float) -> None:
    right = scores_of(torch.tensor([logit]), torch.tensor([float(logit > 0)]))
    wrong = scores_of(torch.tensor([logit]), torch.tensor([float(logit < 0)]))
    assert right.log_loss == pytest.approx(0.0, abs=1e-17)
    assert wrong.log_loss == pytest.approx(abs(logit))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_precision_of_the_model_is_scored(dtype: torch.dtype) -> None:
    logits = torch.tensor([0.5, -1.5, 2.0], dtype=dtype)
    scores = scores_of(logits, torch.tensor([1, 0, 1], dtype=torch.int32))
    assert scores.auc == 1.0
    assert scores.log_loss == pytest.approx(reference.log_loss(logits.double().numpy(), np.array([1.0, 0.0, 1.0])))


def test_scoring_leaves_its_inputs_alone_and_out_of_the_autograd_graph() -> None:
    logits = torch.tensor([0.5, float("nan")], requires_grad=True)
    labels = torch.tensor([1.0, 0.0])
    cells = sketch.empty(CPU)
    sketch.accumulate(cells, logits, labels)
    assert not cells.requires_grad
    assert logits.detach()[0] == 0.5
    assert torch.isnan(logits.detach()[1])
    assert labels.tolist() == [1.0, 0.0]
