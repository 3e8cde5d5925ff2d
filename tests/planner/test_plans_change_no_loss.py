"""Whatever plan the eager runtime runs, and whenever it switches, the model learns the same, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planner.plans_of_jobs import any_plan
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.training import Evaluation as EvaluationSpec
from rap_contract.windows import INLINE, INPUT_DIST, ORDER, PLACES
from rap_trainer.batch import RawBatch
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import ShardedModel, shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plan.fits import PlanRefused
from rap_trainer.program.columns import BatchError
from rap_trainer.step.choice import choose_runtime
from rap_trainer.step.runtime import Runtime
from rap_trainer.step.windows import StepWindows
from rap_trainer.synthetic_batch import synthetic_batch
from rap_trainer.world import World, join_world
from train.small_jobs import document

pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")

ROWS, STEPS = 16, 5
DOCUMENT = document(Path("/nowhere"))
JOB = RAPJob.model_validate(DOCUMENT)
SCHEDULES = st.lists(st.sampled_from(list(ORDER)), min_size=1, max_size=4).map(
    lambda names: sorted(names, key=lambda name: ORDER[name])
)


def compiled() -> FeatureGraph:
    graph, problems = compile_features(JOB.spec)
    assert graph is not None, problems
    return graph


GRAPH = compiled()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({}, use_gpu=False)
    dist.destroy_process_group()


def model(world: World) -> ShardedModel:
    built = build_model(JOB.spec, embedding_bag_collection(GRAPH), num_dense=GRAPH.dense_width)
    return shard_model(built, JOB.spec, world)


def runtime(world: World) -> Runtime:
    evaluator = Evaluator(EvaluationSpec(window_rows=10**6), world.device)
    return choose_runtime(JOB.spec, GRAPH, model(world), evaluator, world)[0]


def batches() -> list[RawBatch]:
    return [synthetic_batch(DOCUMENT, ROWS, seed=number) for number in range(STEPS)]


def losses(trained: Runtime, plans: dict[int, Plan] | None = None) -> list[float]:
    """Driven as the loop drives it; `plans` are switched to before the step of their key is prepared."""
    found, pending = [], None
    for number, raw in enumerate([*batches(), None]):
        if plans and number in plans:
            trained.prepare_plan(plans[number])
            trained.switch_plan()
        upcoming = None if raw is None else trained.prepare(raw)
        if pending is not None:
            found.append(float(trained.train(pending).loss_sum or 0.0))
        if upcoming is not None and upcoming.error is not None:
            raise upcoming.error
        pending = upcoming
    trained.close()
    return found


@pytest.fixture(scope="module")
def expected(world: World) -> list[float]:
    return losses(runtime(world))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=SCHEDULES, second=SCHEDULES, at=st.integers(0, STEPS - 1))
def test_any_plan_and_any_switch_leave_every_loss_as_it_was(
    world: World, expected: list[float], first: list[str], second: list[str], at: int
) -> None:
    plans = {0: any_plan(JOB, first), at: any_plan(JOB, second)}
    assert losses(runtime(world), plans) == expected


def test_a_step_enters_its_windows_in_their_order(world: World) -> None:
    trained = model(world)
    windows = StepWindows(trained.module)
    entered: list[str] = []
    from rap_trainer.program import Program

    batch = Program(GRAPH).run(batches()[0])
    windows.begin(entered.append)
    loss = trained.forward(batch.dense_BD, batch.sparse).sum()
    windows.enter("mlp_bwd")
    torch.autograd.backward(loss)
    windows.end()
    assert entered == [INPUT_DIST, *PLACES]


@pytest.mark.parametrize("window", PLACES)
def test_preprocessing_of_the_next_step_runs_beside_training_in_another_thread(
    world: World, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    from rap_trainer.program import Program

    run, threads = Program.run, []

    def noted(self: Program, raw: RawBatch) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return run(self, raw)

    monkeypatch.setattr(Program, "run", noted)
    assert losses(runtime(world), {0: any_plan(JOB, [window])})
    assert threads == [True] + [False] * (STEPS - 1)
    threads.clear()
    assert losses(runtime(world), {0: any_plan(JOB, [INLINE])})
    assert threads == [True] * STEPS


def test_what_fails_beside_training_is_told_with_the_step_it_was_for(world: World) -> None:
    trained = runtime(world)
    trained.prepare_plan(any_plan(JOB, ["emb_bwd"]))
    trained.switch_plan()
    good, bad = batches()[:2]
    first = trained.prepare(good)
    upcoming = trained.prepare(replace(bad, columns={}))
    assert trained.train(first).loss_sum is not None
    assert isinstance(upcoming.error, BatchError)
    trained.close()


def test_a_plan_of_other_ranks_features_or_owners_is_refused_and_the_old_one_stays(world: World) -> None:
    trained, good = runtime(world), any_plan(JOB, ["mlp_fwd"])
    trained.prepare_plan(good)
    trained.switch_plan()
    content = {**good.model_dump(), "hash": ""}
    mapping = dict(good.mapping)
    for changed, words in (
        ({"num_ranks": 2}, "the plan is for 2 ranks, this attempt has 1"),
        ({"mapping": dict.fromkeys(list(mapping)[1:])}, "does not place feature int_0"),
        ({"mapping": {**mapping, "more": None}}, "places feature more, which does not exist"),
        ({"mapping": {**mapping, "int_0": 0}}, "int_0 on rank 0, but it is dense and has no table"),
    ):
        with pytest.raises(PlanRefused, match=words):
            trained.prepare_plan(Plan.model_validate({**content, **changed}))
    assert trained.plan == good
    trained.close()
