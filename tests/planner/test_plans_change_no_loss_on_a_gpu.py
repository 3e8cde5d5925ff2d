"""Whatever plan the captured runtime runs, and whenever it switches, the model learns the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from planner.plans_of_jobs import any_plan
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.training import Evaluation as EvaluationSpec
from rap_contract.windows import INLINE, PLACES
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plan.fits import PlanRefused
from rap_trainer.plan_inputs import read_profile
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.step.choice import choose_runtime
from rap_trainer.step.runtime import Runtime
from rap_trainer.world import World, join_world

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

ROWS, STEPS = 512, 6


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({}, use_gpu=True)
    dist.destroy_process_group()


def job(runtime: str) -> RAPJob:
    document = plan_job(0, max_rows=2000, batch_size=ROWS, dim=128)
    document["spec"]["trainer"] |= {"runtime": runtime, "precision": "fp32", "gpusPerNode": 1}
    return RAPJob.model_validate(document)


def runtime(job: RAPJob, world: World, plan: Plan | None = None) -> Runtime:
    graph, _ = compile_features(job.spec)
    assert graph is not None
    evaluator = Evaluator(EvaluationSpec(window_rows=10**6), world.device)
    model = shard_model(
        build_model(job.spec, embedding_bag_collection(graph), num_dense=graph.dense_width), job.spec, world
    )
    return choose_runtime(job.spec, graph, model, evaluator, world, plan=plan)[0]


def losses(
    trained: Runtime,
    job: RAPJob,
    plans: dict[int, Plan] | None = None,
    *,
    beside: bool = False,
    between: Callable[[], object] | None = None,
) -> list[float]:
    """`beside`: each plan is prepared in a thread while the steps before its own are made. `between`: done before the fourth."""
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    found, pending = [], None
    watch, preparing = ThreadPoolExecutor(1), None
    for number in range(STEPS + 1):
        if preparing is None and plans and beside and any(at >= number for at in plans):
            preparing = watch.submit(trained.prepare_plan, plans[min(at for at in plans if at >= number)])
        if plans and number in plans:
            if preparing is None:
                trained.prepare_plan(plans[number])
            else:
                preparing.result()
                preparing = None
            trained.switch_plan()
        if number == 3 and between is not None:
            between()
        raw = synthetic_batch(document, ROWS, seed=number) if number < STEPS else None
        upcoming = None if raw is None else trained.prepare(raw)
        if pending is not None:
            found.append(float(trained.train(pending).loss_sum or 0.0))
        pending = upcoming
    trained.close()
    return found


@pytest.mark.parametrize("kind", ["captured", "eager"])
def test_every_window_and_grid_gives_the_losses_of_the_default(world: World, kind: str) -> None:
    asked = job(kind)
    expected = losses(runtime(asked, world), asked)
    for window in (INLINE, *PLACES):
        for programs in (None, 64) if kind == "captured" and window != INLINE else (None,):
            plan = any_plan(asked, [window], programs=programs)
            trained = runtime(asked, world, plan)
            assert trained.plan == plan
            assert losses(trained, asked) == expected


@pytest.mark.parametrize("kind", ["captured", "eager"])
def test_switches_between_steps_change_no_loss(world: World, kind: str) -> None:
    asked = job(kind)
    expected = losses(runtime(asked, world), asked)
    plans = {
        1: any_plan(asked, ["emb_bwd"]),
        3: any_plan(asked, ["output_dist"], programs=32),
        4: any_plan(asked, [INLINE]),
    }
    assert losses(runtime(asked, world), asked, plans) == expected


def test_plans_prepared_in_a_thread_beside_training_change_no_loss_and_are_not_captured_at_the_switch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job("captured")
    expected = losses(runtime(asked, world), asked)
    plans = {2: any_plan(asked, ["emb_bwd"]), 4: any_plan(asked, ["output_dist"], programs=32)}
    trained = runtime(asked, world)
    assert isinstance(trained, CapturedRuntime)
    monkeypatch.setattr(trained.builder, "graphs", lambda *_, **__: pytest.fail("captured at the switch"))
    assert losses(trained, asked, plans, beside=True) == expected


def test_windows_measured_between_two_steps_change_no_loss(world: World) -> None:
    from rap_trainer.profiling.captured_again import measured_again

    asked = job("captured")
    expected = losses(runtime(asked, world), asked)
    trained, before = runtime(asked, world), read_profile(None, asked)
    assert isinstance(trained, CapturedRuntime)
    found = []
    given = losses(
        trained,
        asked,
        between=lambda: found.append(measured_again(before, trained.assembled, world, grids=(None,))),
    )
    assert given == expected
    (after,) = found
    assert 0 < after.step_seconds < 1
    assert all(after.window(name).responses for name in PLACES)


def test_a_launch_in_parts_in_windows_of_their_own_changes_no_loss(world: World) -> None:
    asked = job("captured")
    expected = losses(runtime(asked, world), asked)
    whole = any_plan(asked, ["emb_fwd"])
    (kernel,), (placed,), (predicted,) = whole.kernels, whole.schedule, whole.prediction.kernels
    at = len(kernel.features) // 2
    parts = [kernel.model_copy(update={"features": kernel.features[:at]})]
    parts.append(kernel.model_copy(update={"launch": 1, "features": kernel.features[at:]}))
    content = whole.model_dump() | {
        "kernels": parts,
        "schedule": [placed, placed.model_copy(update={"window": "mlp_bwd", "programs": 64})],
        "prediction": whole.prediction.model_copy(update={"kernels": (predicted, predicted)}),
        "hash": "",
    }
    plan = Plan.model_validate(content)
    trained = runtime(asked, world, plan)
    assert trained.plan == plan
    assert losses(trained, asked) == expected
    assert losses(runtime(asked, world), asked, {2: plan, 4: whole}) == expected


def test_a_plan_of_other_launches_is_refused(world: World) -> None:
    asked = job("captured")
    plan = any_plan(asked, ["emb_bwd"])
    two = [*plan.kernels, plan.kernels[0].model_copy(update={"launch": len(plan.kernels)})]
    content = plan.model_dump() | {
        "kernels": two,
        "schedule": [*plan.schedule, plan.schedule[-1]],
        "prediction": plan.prediction.model_copy(
            update={"kernels": (*plan.prediction.kernels, plan.prediction.kernels[0])}
        ),
        "hash": "",
    }
    trained = runtime(asked, world, plan)
    with pytest.raises(PlanRefused, match="launches, the program has"):
        trained.prepare_plan(Plan.model_validate(content))
    assert trained.plan == plan
    trained.close()
