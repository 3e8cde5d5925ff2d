"""Values to show: one run, its progress and its end, with numbers that a reader can check by eye."""

from __future__ import annotations

from dataclasses import replace

from rap_trainer.display import Event, Outcome, Progress, Run

NOW_S = 1_780_000_000.0  # 2026-05-28 20:26:40 UTC

RUN = Run(
    job="clicks",
    attempt=2,
    world=2,
    device="cpu",
    runtime="eager",
    batch_size=8192,
    source="/data/events",
    checkpoint_path="/checkpoints/clicks",
    resumed_step=0,
    metrics_port=9400,
    time_s=NOW_S,
)

FULL = Progress(
    time_s=NOW_S + 83,
    step=1234,
    rows=10_108_928,
    rows_per_s=41_234.5,
    step_ms=48.25,
    parts_ms={"data": 3.0, "preprocess": 5.25, "forward": 14.0, "backward": 21.0, "update": 3.5, "other": 1.5},
    exposed_ratio=0.031,
    loss=0.118,
    normalized_entropy=0.8123,
    auc=0.7712,
    auc_error=0.0005,
    calibration=1.02,
    life_normalized_entropy=0.8341,
    life_auc=0.7602,
    life_calibration=1.01,
    freshness_p50_s=1.2,
    freshness_p99_s=3.4,
    lag_records=12_345,
    lag_s=0.3,
    checkpoint_age_s=12.0,
    checkpoint_step=1200,
    bad_rows=12,
    starved_s=0.0,
    attempt=2,
    world=2,
)

BARE = Progress(time_s=NOW_S + 1, step=1, rows=8192, rows_per_s=8192.0, step_ms=1000.0)
"""A first report that knows nothing more than its speed."""

CHECKPOINT = Event(time_s=NOW_S + 71, kind="checkpoint", text="step 1,200 in 0.8 s", step=1200)

OUTCOME = Outcome(
    time_s=NOW_S + 90,
    exit_code=0,
    reason="the source has ended",
    steps=1234,
    rows=10_108_928,
    seconds=245.0,
    last=FULL,
    checkpoint_step=1234,
    report="/checkpoints/clicks/report.html",
)


def at_step(step: int) -> Progress:
    """A report of one second per step."""
    entropy = 0.75 + 0.3 / (1 + step / 50)
    return replace(FULL, step=step, rows=step * 8192, time_s=NOW_S + step, normalized_entropy=entropy)
