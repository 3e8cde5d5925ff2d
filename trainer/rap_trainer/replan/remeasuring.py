"""When a running attempt measures its windows again: the step no longer takes what the plan predicts, or lists are others than they were.

And only once that stands still: what is measured in the middle of a drift is soon to be measured again. The first rank decides,
all ranks measure between the same two steps. Not here: how to measure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch.distributed as dist
from rap_contract import metrics
from rap_contract.operations import Replanning
from rap_contract.problem import InvalidDocument
from rap_contract.profile import Profile
from rap_planner.correct import corrected
from rap_planner.kernel_cost import Grid

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.plan.comparison import STEP
from rap_trainer.replan.profile_in_force import ProfileInForce
from rap_trainer.step.runtime import Runtime
from rap_trainer.world import World

log = logging.getLogger(__name__)

MAX_SHARE = 0.01
"""Of training's time at most is spent on measuring: what replanning gains on a captured step is a few percent (docs/replanning.md)."""

OTHER_LISTS = 0.5
"""Change of a group's mean list length since the windows were measured, upon which what fits into them is measured again."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a running job takes and trains, as far as it is known."""

    step_ratio: float | None
    """Measured over predicted step."""
    lists: Mapping[str, float]
    """Mean length, by feature group."""

    def filled(self, later: Sizes) -> Sizes:
        """With what was not known yet as it is later: a run asks before its first step was timed."""
        return Sizes(step_ratio=self.step_ratio or later.step_ratio, lists={**later.lists, **self.lists})

    def change(self, after: Sizes) -> tuple[float, float]:
        """By which share the step and the lists that changed most are others."""
        step = abs(after.step_ratio / self.step_ratio - 1) if self.step_ratio and after.step_ratio else 0.0
        lists = (abs(after.lists.get(group, old) - old) / max(old, 1.0) for group, old in self.lists.items())
        return step, max(lists, default=0.0)


Measure = Callable[[Profile], Profile]
"""The profile with the windows of the step as they are now. Collective. Raises MemoryError, on the first rank InvalidDocument."""


class Remeasuring:
    """Of one rank. `measure`: None where the runtime cannot; then only the error history corrects the profile."""

    def __init__(
        self,
        policy: Replanning,
        store: MetricStore,
        profile: ProfileInForce,
        *,
        measure: Measure | None,
        world: World,
    ) -> None:
        self._policy, self._store, self._profile, self._measure, self._world = policy, store, profile, measure, world
        self._known: Sizes | None = None
        """When the windows were measured last, or first seen."""
        self._latest: Sizes | None = None
        """When it was last looked."""
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether this rank asks for it; only the first rank's answer counts. Looks once a window of time. `now_s`: monotonic."""
        if self._measure is None or self._world.rank > 0 or self._policy.mode == "Off" or now_s < self._next_s:
            return False
        before, self._latest = self._latest, self._sizes()
        self._known = self._latest if self._known is None else self._known.filled(self._latest)
        self._next_s = now_s + self._policy.window_seconds
        if before is None:
            return False
        triggers, (step, lists) = self._policy.triggers, before.change(self._latest)
        if 0 < triggers.prediction_ratio < step or 0 < triggers.workload_ratio < lists:
            return False  # it still changes
        step, lists = self._known.change(self._latest)
        return 0 < triggers.prediction_ratio < step or (triggers.workload_ratio > 0 and lists > OTHER_LISTS)

    def act(self, now_s: float) -> None:
        """Measures, between two steps. Collective."""
        assert self._measure is not None
        began_s, found = time.perf_counter(), [self._read()]
        if self._world.size > 1:
            dist.broadcast_object_list(found, src=0, group=self._world.control_group)
        if found[0] is not None:
            self._measure_over(found[0], began_s)
        self._known = self._latest = self._sizes()
        took_s = time.perf_counter() - began_s
        self._next_s = now_s + took_s + max(self._policy.min_interval_seconds, took_s / MAX_SHARE)

    def _sizes(self) -> Sizes:
        ratio = self._store.read(metrics.PLAN_ERROR_RATIO).get((STEP,))
        lists = {labels[0]: value for labels, value in self._store.read(metrics.MEAN_LIST_LENGTH).items()}
        return Sizes(step_ratio=ratio, lists=lists)

    def _measure_over(self, before: Profile, began_s: float) -> None:
        assert self._measure is not None
        try:
            profile = self._measure(before)
        except (MemoryError, InvalidDocument) as lack:
            log.warning("the windows are not measured again: %s", lack)
            return
        if self._world.rank == 0:
            if not is_of_own_work(profile):
                # What the slots hold now may take longer or shorter than steps did lately: those say how long one is.
                real_s = self._profile.corrected()[0].step_seconds
                profile = corrected(profile, training=real_s / profile.step_seconds)
            self._profile.replace(profile)
            log.info("the windows of the step were measured again in %.1f s", time.perf_counter() - began_s)

    def _read(self) -> Profile | None:
        """The first rank's profile; None where it cannot be read, which nobody mends by measuring."""
        if self._world.rank > 0:
            return None
        try:
            return self._profile.read()
        except InvalidDocument as invalid:
            log.warning("the windows are not measured again: %s", invalid)
            return None


def is_of_own_work(profile: Profile) -> bool:
    """Whether its windows were measured with the job's own launches: those move no bytes of a probe."""
    return any(each.num_bytes == 0 for window in profile.windows for each in window.responses)


def measure_again(
    runtime: Runtime, name: str, world: World, *, inline_seconds: Callable[[Profile, Grid], float]
) -> Measure | None:
    """How a runtime measures its windows between two steps. None for the eager one: a probe beside its step would train.

    Long steps with the job's own launches, as `rap profile` does, others with probes. `inline_seconds`: all preprocessing
    of the data of today alone on a grid, by a profile; asked on the first rank only.
    """
    if name != "captured":
        return None
    from rap_trainer.captured.runtime import CapturedRuntime  # Triton, and only for GPUs
    from rap_trainer.profiling.captured_again import measured_again
    from rap_trainer.profiling.captured_windows import LONG_S
    from rap_trainer.profiling.own_work import own_work, with_own_work

    assert isinstance(runtime, CapturedRuntime)

    def measure(profile: Profile) -> Profile:
        if profile.step_seconds >= LONG_S or is_of_own_work(profile):
            own = own_work(runtime, world)
            if world.rank > 0:
                return profile
            alone_s = {grid: inline_seconds(profile, grid) for grid in {each for _, each in own}}
            return with_own_work(profile, own, predicted_s=alone_s)
        used = dict.fromkeys(placed.programs for placed in runtime.schedule.placements)
        grids = tuple({None: None, **used})
        with runtime.beside.alone():
            return measured_again(profile, runtime.assembled, world, grids=grids, sort_early=runtime.sorts_early)

    return measure
