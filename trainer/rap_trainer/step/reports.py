"""Gathers the numbers of a run over all ranks, about once a second, for the displays and the divergence guard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from rap_contract.training import Evaluation as EvaluationSpec

from rap_trainer.display.progress import PARTS, Progress
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.evaluation.freshness import Freshness
from rap_trainer.evaluation.guard import Divergence, check
from rap_trainer.step.loss_watch import LossWatch
from rap_trainer.step.meters import Meters
from rap_trainer.step.timing import PartTimer
from rap_trainer.stream.source import Lag, Lagging, Source
from rap_trainer.world import World

STEPS_AT_ONCE = 32
"""Steps whose event times are counted together: a count of 4096 rows costs a CPU 0.1 ms, most of it for its dozen calls."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the loop knows at the moment of a report."""

    step: int
    rows: int
    """Of the job's whole life."""
    attempt: int
    starved_s: float
    """Of this attempt."""
    checkpoint_age_s: float | None
    checkpoint_step: int | None


class Reports:
    """Numbers since the report before. Every rank takes part; not thread-safe."""

    def __init__(
        self,
        spec: EvaluationSpec,
        world: World,
        *,
        evaluator: Evaluator,
        timer: PartTimer,
        watch: LossWatch,
        meters: Meters,
    ) -> None:
        self._spec = spec
        self._world = world
        self._evaluator = evaluator
        self._timer = timer
        self._watch = watch
        self._meters = meters
        self._freshness = Freshness(torch.device("cpu"))
        self._negative_ages: list[torch.Tensor] = []
        self._since_s = time.perf_counter()
        self._step = 0
        self._rows = 0

    def begin(self, step: int, rows: int) -> None:
        """Counts from here."""
        self._since_s, self._step, self._rows = time.perf_counter(), step, rows

    def stepped(self, event_times_s_B: torch.Tensor, now_s: float) -> None:
        """Notes the events of a step that ended at `now_s`, on the host; counted some steps at a time."""
        self._negative_ages.append(event_times_s_B - now_s)
        if len(self._negative_ages) >= STEPS_AT_ONCE:
            self._count_events()

    def _count_events(self) -> None:
        if self._negative_ages:
            self._freshness.update(torch.cat(self._negative_ages), 0.0)
            self._negative_ages.clear()

    def take(self, standing: Standing, source: Source) -> tuple[Progress, Divergence | None]:
        """Collective, after the same step on every rank; the same result everywhere but for this rank's parts."""
        now_s = time.perf_counter()
        lag = self._lag(source)
        evaluation = self._evaluator.summary(self.all_reduce)
        self._count_events()
        fresh = self._freshness.take(self.all_reduce)
        loss_sum = self._watch.take()
        self.all_reduce(loss_sum)
        elapsed_s, steps, rows = now_s - self._since_s, standing.step - self._step, standing.rows - self._rows
        seconds = self._timer.take()
        self._meters.report(seconds, fresh, source)
        self._meters.device.report(self._world.device)
        self.begin(standing.step, standing.rows)
        step_ms = 1e3 * elapsed_s / steps if steps else 0.0
        parts_ms = _parts_ms(seconds, steps, step_ms)
        window, life = evaluation.window, evaluation.life
        progress = Progress(
            time_s=time.time(),
            step=standing.step,
            rows=standing.rows,
            rows_per_s=rows / elapsed_s if elapsed_s else 0.0,
            step_ms=step_ms,
            parts_ms=parts_ms,
            exposed_ratio=parts_ms["preprocess"] / step_ms if steps else None,
            loss=float(loss_sum) / rows if rows else None,
            normalized_entropy=window.normalized_entropy,
            auc=window.auc,
            auc_error=window.auc_error,
            calibration=window.calibration,
            life_normalized_entropy=life.normalized_entropy,
            life_auc=life.auc,
            life_calibration=life.calibration,
            freshness_p50_s=fresh.p50_s,
            freshness_p99_s=fresh.p99_s,
            lag_records=None if lag is None else lag.records,
            lag_s=None if lag is None else lag.seconds,
            checkpoint_age_s=standing.checkpoint_age_s,
            checkpoint_step=standing.checkpoint_step,
            bad_rows=self._meters.bad_rows,
            starved_s=standing.starved_s,
            attempt=standing.attempt,
            world=self._world.size,
        )
        return progress, check(evaluation, self._spec)

    def _lag(self, source: Source) -> Lag | None:
        """Of all ranks: the sum of the records, the longest of the times. Collective if the source knows it."""
        if not isinstance(source, Lagging):
            return None
        mine = source.lag()
        lags: list[Lag] = [mine] * self._world.size
        if self._world.size > 1:
            dist.all_gather_object(lags, mine, group=self._world.control_group)
        known = [lag.seconds for lag in lags if lag.seconds is not None]
        return Lag(records=sum(lag.records for lag in lags), seconds=max(known, default=None))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sums a tensor over the ranks, in place."""
        if self._world.size > 1:
            dist.all_reduce(tensor, group=self._world.data_group)


def _parts_ms(seconds: Mapping[str, float], steps: int, step_ms: float) -> dict[str, float]:
    """Milliseconds a step by part; `other` is what is left of the step."""
    if not steps:
        return dict.fromkeys(PARTS, 0.0)
    parts = {part: 1e3 * seconds.get(part, 0.0) / steps for part in PARTS}
    parts["other"] = max(0.0, step_ms - sum(parts.values()))
    return parts
