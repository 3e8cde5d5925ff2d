"""Valid plans of a job with any schedule, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from rap_contract.job import RAPJob
from rap_contract.plan import Placement, Plan
from rap_contract.profile import Workload
from rap_planner.explain import plan_of
from rap_planner.search import Planner
from rap_trainer.plan_inputs import read_profile, task_for


def any_plan(job: RAPJob, windows: Sequence[str], *, programs: int | None = None) -> Plan:
    """The job's plan with its launches in these windows, the last one for all that follow."""
    profile = read_profile(None, job)
    plan = plan_of(Planner().search(task_for(job, profile, workload=Workload()), profile), profile)
    placed = [windows[min(number, len(windows) - 1)] for number in range(len(plan.kernels))]
    schedule = [Placement(window=window, programs=None if window == "inline" else programs) for window in placed]
    return Plan.model_validate({**plan.model_dump(), "schedule": schedule, "hash": ""})
