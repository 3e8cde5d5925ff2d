"""On a GPU the evaluator never waits for the device, can be captured, and scores as on a CPU."""

from __future__ import annotations

import pytest
import torch
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.evaluation import Evaluator, Freshness

pytestmark = pytest.mark.gpu
NOW_S = 1_780_000_000.0


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


def batches(device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(30, 4096, generator=generator)
    logits[7, 5] = float("nan")
    labels = (torch.rand(30, 4096, generator=generator) < torch.sigmoid(logits)).float()
    return list(zip(logits.to(device), labels.to(device), strict=True))


def test_updates_do_not_wait_for_the_device(device: torch.device) -> None:
    evaluator, freshness = Evaluator(EvaluationSpec(window_rows=20_000), device), Freshness(device)
    times = torch.full((4096,), NOW_S - 2, dtype=torch.float64, device=device)
    given = batches(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for logits, labels in given:
            evaluator.update(logits, labels)
            freshness.update(times, NOW_S)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert evaluator.summary().life.rows == 30 * 4096 - 1
    assert sum(freshness.take().bucket_counts) == 30 * 4096


def test_scores_agree_with_those_of_a_cpu(device: torch.device) -> None:
    spec, cpu = EvaluationSpec(window_rows=20_000), torch.device("cpu")
    on_gpu, on_cpu = Evaluator(spec, device), Evaluator(spec, cpu)
    for logits, labels in batches(device):
        on_gpu.update(logits, labels)
        on_cpu.update(logits.cpu(), labels.cpu())
    ours, theirs = on_gpu.summary(), on_cpu.summary()
    assert (ours.window.rows, ours.window.auc) == (theirs.window.rows, theirs.window.auc)
    assert (ours.life.auc, ours.life.nonfinite_rows) == (theirs.life.auc, theirs.life.nonfinite_rows)
    assert ours.life.normalized_entropy == pytest.approx(theirs.life.normalized_entropy, rel=1e-6)
    assert ours.life.calibration == pytest.approx(theirs.life.calibration, rel=1e-6)


def test_a_captured_update_counts_every_replay(device: torch.device) -> None:
    captured, eager = (Evaluator(EvaluationSpec(window_rows=10**6), device) for _ in range(2))
    given = batches(device)
    logits, labels = given[0][0].clone(), given[0][1].clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        Evaluator(EvaluationSpec(), device).accumulate(logits, labels)  # warm-up on another evaluator
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.accumulate(logits, labels)
    for batch_logits, batch_labels in given:
        logits.copy_(batch_logits)
        labels.copy_(batch_labels)
        graph.replay()
        captured.advance(4096)
        eager.update(batch_logits, batch_labels)
    assert captured.summary() == eager.summary()
