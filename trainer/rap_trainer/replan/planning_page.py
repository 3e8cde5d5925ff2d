"""What a search for a better plan needs to know of this attempt, as JSON: profile, task for the data of today, plan in force.

Served beside /metrics on the first rank, made anew for each request (some milliseconds, in the server's thread).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument
from rap_contract.profile import GroupWorkload, Profile, Workload
from rap_contract.windows import INLINE
from rap_planner.cost import Costs
from rap_planner.kernel_cost import Grid
from rap_planner.loads import Estimator
from rap_planner.task import Task
from rap_planner.task_json import task_document

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.evaluation.workload import group_columns
from rap_trainer.plan_inputs import task_for
from rap_trainer.replan.profile_in_force import ProfileInForce
from rap_trainer.step.runtime import Runtime
from rap_trainer.world import World


class PlanningPage:
    """Makes the page. `default_window`: where the runtime preprocesses without a plan."""

    def __init__(
        self,
        job: RAPJob,
        store: MetricStore,
        runtime: Runtime,
        *,
        profile: ProfileInForce | None = None,
        owners: Mapping[str, int] | None = None,
        default_window: str = INLINE,
    ) -> None:
        """`owners`: the rank of each table; without it tables count as dealt by size."""
        self._job, self._store, self._runtime, self._default_window = job, store, runtime, default_window
        self._owners = owners
        self._profile = profile or ProfileInForce(job, os.environ, store)

    def __call__(self) -> bytes:
        """JSON: the inputs of a search, or `error` with the reason why there are none."""
        try:
            content = self._content()
        except InvalidDocument as invalid:
            content = {"error": " ".join(str(invalid).split())[:1000]}
        return json.dumps(content).encode()

    def _content(self) -> dict[str, Any]:
        profile, is_corrected = self._profile.corrected()
        task = self._task(profile)
        plan = self._runtime.plan
        return {
            "profile": profile.model_dump(mode="json", by_alias=True),
            "task": task_document(task),
            "plan": None if plan is None else json.loads(plan.to_json()),
            "defaultWindow": self._default_window,
            "corrected": is_corrected,
        }

    def inline_seconds(self, profile: Profile, grid: Grid = None) -> float:
        """All preprocessing of the data of today alone on a grid, by a profile. Raises InvalidDocument."""
        return Estimator(Costs(profile), self._task(profile)).inline_seconds(grid)

    def _task(self, profile: Profile) -> Task:
        return task_for(self._job, profile, workload=self._workload(), owners=self._owners)

    def _workload(self) -> Workload:
        """The sizes measured lately, by column."""
        lists = {labels[0]: value for labels, value in self._store.read(metrics.MEAN_LIST_LENGTH).items()}
        nulls = {labels[0]: value for labels, value in self._store.read(metrics.NULL_RATIO).items()}
        columns: dict[str, GroupWorkload] = {}
        for group, names in group_columns(self._job.spec.features).items():
            if group in lists or group in nulls:
                load = GroupWorkload(mean_list_length=lists.get(group, 1.0), null_ratio=nulls.get(group, 0.0))
                columns |= dict.fromkeys(names, load)
        return Workload(columns=columns)


def default_window(runtime: str, world: World) -> str:
    """Where a runtime preprocesses without a plan, in the planner's words."""
    if runtime == "captured":
        return "output_dist"  # captured.runtime.DEFAULT_WINDOW, which needs Triton to import
    return "emb_fwd" if world.device.type == "cuda" else INLINE  # beside the step from its begin; before it
