"""A sink that keeps a rank's Prometheus gauges: what the panel shows, as metrics.

Rank 0 alone has the numbers of the whole job. Counters and histograms are raised where things happen, by the training
loop, in the same store.
"""

from __future__ import annotations

import os
from pathlib import Path

from rap_contract import metrics

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.display.progress import Event, Outcome, Progress, Run


class Gauges:
    """The gauges of one rank. `version` is the distribution's."""

    def __init__(self, store: MetricStore, *, rank: int, version: str) -> None:
        self._store = store
        self._rank = rank
        self._version = version

    def start(self, run: Run) -> None:
        store = self._store
        store.set_info(
            metrics.TRAINER_INFO,
            rapjob=run.job,
            rank=self._rank,
            device=run.device,
            runtime=run.runtime,
            version=self._version,
        )
        store.set(metrics.ATTEMPT, run.attempt)
        store.set(metrics.WORLD_SIZE, run.world)
        store.set(metrics.STEP, run.resumed_step)

    def update(self, progress: Progress) -> None:
        store = self._store
        store.set(metrics.STEP, progress.step)
        store.set(metrics.EXPOSED_RATIO, progress.exposed_ratio)
        for part, milliseconds in progress.parts_ms.items():
            store.set(metrics.MEASURED_STEP_SECONDS, milliseconds / 1e3, part=part)
        store.set(metrics.HOST_MEMORY_BYTES, resident_bytes())
        if self._rank != 0:
            return
        store.set(metrics.ROWS_PER_SECOND, progress.rows_per_s)
        store.set(metrics.LOSS, progress.loss)
        store.set(metrics.NORMALIZED_ENTROPY, progress.normalized_entropy, span="window")
        store.set(metrics.NORMALIZED_ENTROPY, progress.life_normalized_entropy, span="life")
        store.set(metrics.AUC, progress.auc, span="window")
        store.set(metrics.AUC, progress.life_auc, span="life")
        store.set(metrics.CALIBRATION, progress.calibration, span="window")
        store.set(metrics.CALIBRATION, progress.life_calibration, span="life")
        age_s = progress.checkpoint_age_s
        store.set(metrics.CHECKPOINT_AGE_SECONDS, age_s)
        store.set(metrics.CHECKPOINT_TIME_SECONDS, None if age_s is None else progress.time_s - age_s)
        store.set(metrics.CHECKPOINT_STEP, progress.checkpoint_step)

    def event(self, event: Event) -> None:
        """Events are counted where they happen."""

    def finish(self, outcome: Outcome) -> None:
        if outcome.last is not None:
            self.update(outcome.last)


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM; None where the kernel does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
