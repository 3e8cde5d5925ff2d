"""A profile whose windows were measured with the job's own preprocessing: the plan takes the window that was the best, and predicts what was measured."""

from __future__ import annotations

import pytest
from rap_contract.job import RAPJob
from rap_contract.profile import GroupWorkload, Workload
from rap_contract.windows import INLINE, PLACES
from rap_planner.cost import Costs
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of
from rap_planner.kernel_cost import Grid
from rap_planner.loads import Estimator
from rap_planner.search import Planner
from rap_trainer.plan_inputs import read_profile, task_for
from rap_trainer.plans import plan_job
from rap_trainer.profiling.found import LAST, NOTHING
from rap_trainer.profiling.own_work import with_own_work

NARROW = 132
STEP_S, SLOWER = 0.010, 1.5
"""The step without preprocessing; what was measured of preprocessing over what the profile predicts."""


@pytest.mark.parametrize("grid", [None, NARROW])
@pytest.mark.parametrize("best", PLACES)
@pytest.mark.parametrize("plan", [0, 4])
def test_the_plan_takes_the_window_that_was_measured_best(plan: int, best: str, grid: Grid) -> None:
    document = plan_job(plan, batch_size=512)
    document["spec"]["trainer"] |= {"gpusPerNode": 1}
    job = RAPJob.model_validate(document)
    profile = read_profile(None, job)
    task = task_for(job, profile, workload=Workload())
    before = Estimator(Costs(profile), task)
    predicted_s = {grid: before.inline_seconds(grid) for grid in (None, NARROW)}
    own = {NOTHING: STEP_S, (INLINE, None): STEP_S + SLOWER * predicted_s[None]}
    own |= {
        (name, each): STEP_S + SLOWER * predicted_s[None] * (0.2 if (name, each) == (best, grid) else 0.8)
        for name in PLACES
        for each in (None, NARROW)
    }
    measured = with_own_work(profile, own, predicted_s=predicted_s)
    result = Planner(enumerator=Enumerator.of(measured)).search(task, measured)
    assert set(result.best.schedule) == {(best, grid)}
    estimator = Estimator(Costs(measured), task)
    for slot in own:
        if slot != NOTHING:
            schedule = (slot,) * len(task.kernels)
            assert estimator.step_seconds(frozenset(), schedule) == pytest.approx(own[slot], rel=0.002)


def test_a_window_in_which_the_step_was_shorter_than_without_adds_nothing() -> None:
    job = RAPJob.model_validate(plan_job(0, batch_size=512))
    profile = read_profile(None, job)
    own = {NOTHING: STEP_S, (INLINE, None): STEP_S + 1e-4} | {(name, None): STEP_S - 1e-5 for name in PLACES}
    measured = with_own_work(profile, own, predicted_s={None: 1e-4})
    assert measured.step_seconds == STEP_S
    assert {each.added_seconds for name in PLACES for each in measured.window(name).responses} == {0.0}


@pytest.mark.parametrize("late", PLACES[1:])
def test_ids_leave_after_the_window_in_which_their_leaving_cost_least(late: str) -> None:
    document = plan_job(4, batch_size=512)
    document["spec"]["trainer"] |= {"gpusPerNode": 2}
    job = RAPJob.model_validate(document)
    profile = read_profile(None, job)
    task = task_for(job, profile, workload=Workload(default=GroupWorkload(mean_list_length=20.0)))
    predicted_s = Estimator(Costs(profile), task).inline_seconds()
    inline = {NOTHING: STEP_S, (INLINE, None): STEP_S + predicted_s}
    together = {(name, None): STEP_S + 0.7 * predicted_s for name in PLACES} | {
        (PLACES[0], None): STEP_S + 0.5 * predicted_s
    }
    apart = {(LAST + name, None): STEP_S + (0.1 if name == late else 0.6) * predicted_s for name in PLACES[1:]}
    own = inline | together | apart
    measured = with_own_work(profile, own, predicted_s={None: predicted_s})
    result = Planner(enumerator=Enumerator.of(measured)).search(task, measured)
    *most, last = [window for window, _ in result.best.schedule]
    assert (set(most[: len(most) // 2]), last) == ({PLACES[0]}, late)
    assert result.best.seconds == pytest.approx(own[LAST + late, None], rel=0.02)
    plan = plan_of(result, measured)
    assert sum(part.seconds for part in plan.prediction.parts) == pytest.approx(result.best.seconds)
    estimator = Estimator(Costs(measured), task)
    for slot, seconds in (inline | together).items():
        if slot != NOTHING:
            assert estimator.step_seconds(frozenset(), (slot,) * len(task.kernels)) == pytest.approx(seconds, rel=0.01)
