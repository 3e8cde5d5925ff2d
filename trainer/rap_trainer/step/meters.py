"""Raises this rank's Prometheus counters and histograms where things happen; gauges are `display/gauges.py`'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from rap_contract import metrics
from rap_contract.features import Feature
from rap_contract.plan import Plan

from rap_trainer.batch import RawBatch
from rap_trainer.checkpoint.errors import CheckpointError
from rap_trainer.checkpoint.writer import Written
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.evaluation.anomalies import Anomalies
from rap_trainer.evaluation.freshness import FreshnessReading
from rap_trainer.evaluation.workload import Workload, group_columns
from rap_trainer.plan.comparison import LIST_LENGTHS, Comparison
from rap_trainer.step.device_meter import DeviceMeter


class _Counts(Protocol):
    @property
    def rows(self) -> int: ...
    @property
    def bad_rows(self) -> Mapping[str, int]: ...
    @property
    def quarantined_files(self) -> Mapping[str, int]: ...


@runtime_checkable
class Counted(Protocol):
    """A source that counts what it reads."""

    def counts(self) -> _Counts:
        """Totals since it began."""


@runtime_checkable
class Metered(Protocol):
    """A source with metrics of its own."""

    def meter(self, store: MetricStore) -> None:
        """Writes them."""


class Meters:
    """Counters of one rank. Not thread-safe but for the store."""

    def __init__(self, store: MetricStore, features: Sequence[Feature] = ()) -> None:
        self._store = store
        self._workload = Workload(group_columns(features))
        self._anomalies = Anomalies()
        self._stepped_s: float | None = None
        self._starved_s = 0.0
        self._stall_s = 0.0
        self._steps = 0
        """Since the report before."""
        self._comparison = Comparison()
        self._plan: Callable[[], Plan | None] = lambda: None
        self.device = DeviceMeter(store)
        self.bad_rows = 0
        """Rows that could not be read, as far as the source says."""

    def compare(self, plan: Callable[[], Plan | None]) -> None:
        """Compares steps with what the plan in force predicts from now on."""
        self._plan = plan

    def batch(self, raw: RawBatch) -> None:
        """A batch on the host is about to be preprocessed."""
        self._workload.update(raw)

    def counters(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Counters of a preprocessed batch, on its device."""
        self._anomalies.update(counters)

    def step(self, rows: int, *, partial: bool) -> None:
        """An optimizer step of this rank's `rows` rows is done (on a GPU: enqueued)."""
        store, now_s = self._store, time.perf_counter()
        store.inc(metrics.ROWS_TRAINED, rows)
        store.inc(metrics.STEPS)
        self._steps += 1
        if partial:
            store.inc(metrics.PARTIAL_BATCHES)
        if self._stepped_s is not None:
            store.observe(metrics.STEP_SECONDS, now_s - self._stepped_s)
        self._stepped_s = now_s

    def waited(self, seconds: float) -> None:
        """No step could be made for so long."""
        self._store.inc(metrics.STARVED_SECONDS, seconds)
        self.paused()

    def paused(self) -> None:
        """The time until the next step ends is not that step's."""
        self._stepped_s = None

    def report(self, seconds_by_part: Mapping[str, float], fresh: FreshnessReading, source: object) -> None:
        """Everything that is read once a report."""
        store = self._store
        for part, seconds in seconds_by_part.items():
            store.inc(metrics.STEP_PART_SECONDS, seconds, part=part)
        store.inc(metrics.EXPOSED_SECONDS, seconds_by_part.get("preprocess", 0.0))
        store.observe_counts(metrics.FRESHNESS_SECONDS, fresh.bucket_counts, fresh.sum_s)
        self._compare(seconds_by_part, self._report_workload())
        for kind, number in self._anomalies.take().items():
            store.inc(metrics.ANOMALIES, number, kind=kind)
        if isinstance(source, Counted):
            counts = source.counts()
            self.bad_rows = sum(counts.bad_rows.values())
            store.raise_to(metrics.SOURCE_RECORDS, counts.rows)
            for reason, number in counts.bad_rows.items():
                store.raise_to(metrics.BAD_RECORDS, number, reason=reason)
            for reason, number in counts.quarantined_files.items():
                store.raise_to(metrics.QUARANTINED_FILES, number, reason=reason)
        if isinstance(source, Metered):
            source.meter(store)

    def _compare(self, seconds_by_part: Mapping[str, float], lengths: Mapping[str, float]) -> None:
        """Predicted against measured, once a window of steps is full."""
        window = self._comparison.add(self._plan(), seconds_by_part, self._steps, lengths)
        self._steps = 0
        if window is None:
            return
        for row in window.rows:
            if row.part == LIST_LENGTHS:
                self._store.set(metrics.PLAN_DRIFT_SECONDS, row.predicted)
            elif row.measured is not None:
                self._store.set(metrics.PLAN_ERROR_RATIO, self._comparison.correction(row.part), part=row.part)

    def _report_workload(self) -> dict[str, float]:
        """Mean list lengths of the groups that were looked at."""
        lengths: dict[str, float] = {}
        for load in self._workload.take():
            if load.mean_list_length is not None:
                lengths[load.group] = load.mean_list_length
                self._store.set(metrics.MEAN_LIST_LENGTH, load.mean_list_length, group=load.group)
            if load.null_ratio is not None:
                self._store.set(metrics.NULL_RATIO, load.null_ratio, group=load.group)
        return lengths

    def checkpoint(self, written: Written, *, stall_s: float) -> None:
        """A write has ended; `stall_s` is what training has waited for all of them."""
        store = self._store
        store.inc(metrics.CHECKPOINT_STALL_SECONDS, max(0.0, stall_s - self._stall_s))
        self._stall_s = stall_s
        if written.error is None:
            store.inc(metrics.CHECKPOINTS)
            store.set(metrics.CHECKPOINT_BYTES, written.size_bytes)
            store.observe(metrics.CHECKPOINT_SECONDS, written.seconds)
        else:
            reason = written.error.reason if isinstance(written.error, CheckpointError) else "peer_lost"
            store.inc(metrics.CHECKPOINT_FAILURES, reason=reason)

    def fallbacks(self, number: int) -> None:
        """So many damaged checkpoints were passed over."""
        self._store.inc(metrics.CHECKPOINT_FALLBACKS, number)

    def divergence(self, reason: str) -> None:
        """The guard fired."""
        self._store.inc(metrics.DIVERGENCES, reason=reason)
