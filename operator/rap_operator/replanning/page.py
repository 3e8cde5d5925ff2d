"""A rank's page of metrics as a `RankPage`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from rap_contract import metrics

from rap_operator.pages import Sample, Samples
from rap_operator.replanning.values import RankPage

NO_PLAN = "none"
"""How the trainer names its runtime's own default."""
STEP_COUNT, STEP_SUM = f"{metrics.STEP_SECONDS.name}_count", f"{metrics.STEP_SECONDS.name}_sum"
WANTED = frozenset(
    {
        *(STEP_COUNT, STEP_SUM),
        metrics.ATTEMPT.name,
        metrics.WORLD_SIZE.name,
        metrics.PLAN_INFO.name,
        metrics.PLAN_REFUSED_INFO.name,
        metrics.EXPOSED_SECONDS.name,
        metrics.PLAN_SWITCH_STALL_SECONDS.name,
        metrics.PREDICTED_STEP_SECONDS.name,
        metrics.LAG_SECONDS.name,
        metrics.WATERMARK_LAG_SECONDS.name,
        metrics.DEVICE_BUSY_RATIO.name,
        metrics.MEAN_LIST_LENGTH.name,
        metrics.NULL_RATIO.name,
        metrics.WINDOW_CAPACITY_SECONDS.name,
    }
)
"""Names of the samples that are read."""


_SAMPLES = Samples(WANTED)


def samples_of(text: str) -> list[Sample]:
    """The wanted samples of a page in Prometheus' text format. Raises ValueError for a value that is no number."""
    return list(_SAMPLES.of(text))


def rank_page(rank: int, samples: Iterable[Sample]) -> RankPage:
    """What a rank's samples say."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)

    def one(name: str) -> float | None:
        found = by_name.get(name)
        return found[0].value if found else None

    def of(name: str, reduce: Callable[[Iterable[float]], float]) -> float | None:
        found = by_name.get(name)
        return reduce(sample.value for sample in found) if found else None

    def each(name: str, label: str) -> dict[str, float]:
        return {sys.intern(sample.labels.get(label, "")): sample.value for sample in by_name.get(name, ())}

    plan = next((s.labels.get("plan", "") for s in by_name.get(metrics.PLAN_INFO.name, ()) if s.value == 1.0), None)
    refused = next(iter(by_name.get(metrics.PLAN_REFUSED_INFO.name, ())), None)
    attempt, world = one(metrics.ATTEMPT.name), one(metrics.WORLD_SIZE.name)
    lag_s = of(metrics.LAG_SECONDS.name, max)
    return RankPage(
        rank=rank,
        attempt=_whole(attempt),
        world_size=_whole(world),
        plan="" if plan == NO_PLAN else plan,
        steps=one(STEP_COUNT),
        step_seconds=one(STEP_SUM),
        exposed_seconds=one(metrics.EXPOSED_SECONDS.name),
        stall_seconds=one(metrics.PLAN_SWITCH_STALL_SECONDS.name),
        predicted_seconds=of(metrics.PREDICTED_STEP_SECONDS.name, sum),
        lag_s=lag_s,
        freshness_s=of(metrics.WATERMARK_LAG_SECONDS.name, max) or lag_s,
        busy_ratio=one(metrics.DEVICE_BUSY_RATIO.name),
        lists=each(metrics.MEAN_LIST_LENGTH.name, "group"),
        nulls=each(metrics.NULL_RATIO.name, "group"),
        capacity=each(metrics.WINDOW_CAPACITY_SECONDS.name, "window"),
        refused=None if refused is None else (refused.labels.get("plan", ""), refused.labels.get("reason", "")),
    )


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == value and abs(value) < 2**53 else None
