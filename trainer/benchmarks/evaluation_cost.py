"""What watching a model costs: evaluation, freshness, a scrape and the report, as JSON lines.

    PYTHONPATH=operator:trainer python trainer/benchmarks/evaluation_cost.py [--rows 4096] [--device cpu]

Medians over repeats on one thread; on a GPU host time of the call (the step never waits for it).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from prometheus_client import CollectorRegistry, generate_latest
from rap_contract import metrics
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.display import MetricStore, Progress, Run
from rap_trainer.display.report import page
from rap_trainer.display.story import MAX_POINTS, Story
from rap_trainer.evaluation import Evaluator, Freshness


def main() -> None:
    """Prints one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(options.rows, generator=generator)
    labels = (torch.rand(options.rows, generator=generator) < torch.sigmoid(logits)).float().to(device)
    logits = logits.to(device)
    now_s = time.time()
    times = now_s - 60 * torch.rand(options.rows, dtype=torch.float64, device=device)
    evaluator, freshness = Evaluator(EvaluationSpec(), device), Freshness(device)
    measure("evaluation update", lambda: evaluator.update(logits, labels), rows=options.rows, device=options.device)
    measure("evaluation summary", evaluator.summary, repeats=50, device=options.device)
    measure("freshness update", lambda: freshness.update(times, now_s), rows=options.rows, device=options.device)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(filled_store())
    measure("metrics scrape", lambda: generate_latest(registry), repeats=100)
    story = long_story()
    measure("html report", lambda: page(story), repeats=10)


def measure(name: str, call: Callable[[], object], *, repeats: int = 2000, **facts: object) -> None:
    """Prints the median time of a call."""
    for _ in range(max(repeats // 10, 1)):
        call()
    times_s = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - began)
    p10_s = sorted(times_s)[len(times_s) // 10]
    line = {"what": name, "median_us": 1e6 * statistics.median(times_s), "p10_us": 1e6 * p10_s, "repeats": repeats}
    print(json.dumps({**line, **facts}), flush=True)


def filled_store() -> MetricStore:
    """A store with a series of every metric."""
    store = MetricStore(metrics.TRAINER)
    for metric in metrics.TRAINER:
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind is metrics.Kind.COUNTER:
            store.inc(metric, 1.0, **labels)
        elif metric.kind is metrics.Kind.GAUGE:
            store.set(metric, 1.0, **labels)
        else:
            store.observe(metric, 1.0, **labels)
    return store


def long_story() -> Story:
    """A story with as many points as are kept."""
    run = Run(
        job="benchmark",
        attempt=1,
        world=1,
        device="cpu",
        runtime="eager",
        batch_size=4096,
        source="memory",
        checkpoint_path="none",
        resumed_step=0,
        metrics_port=0,
        time_s=0.0,
    )
    story = Story().with_(run)
    for i in range(MAX_POINTS):
        parts = {"forward": 3.0, "backward": 6.0}
        point = Progress(
            time_s=float(i),
            step=i,
            rows=i,
            rows_per_s=1e5,
            step_ms=9.0,
            parts_ms=parts,
            normalized_entropy=0.9,
            auc=0.7,
            calibration=1.0,
            freshness_p50_s=1.0,
        )
        story = story.with_(point)
    return story


if __name__ == "__main__":
    main()
