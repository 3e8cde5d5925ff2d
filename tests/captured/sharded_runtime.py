"""Trains jobs with tables of every sharding in the captured runtime and in the eager one, on GPUs, and compares everything."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from captured.sharded_training import EPS, build, equal_states
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob, RAPJobSpec
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.batch import RawBatch
from rap_trainer.captured.lists import Form
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.state import Tuning
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.plans import MEAN_LENGTH, plan_job, synthetic_batch
from rap_trainer.program import Program
from rap_trainer.step.runtime import EagerRuntime
from rap_trainer.step.stages import training_stages
from rap_trainer.world import World, join_world

ROWS, NUM_BATCHES = 256, 5
SHARDINGS = ("columnWise", "tableWise", "dataParallel", "columnWise", "tableWise", "dataParallel", "tableWise")
TABLES = {"sgd": {"lr": 0.05}, "adagrad": {"lr": 0.02, "eps": EPS}, "rowwiseAdagrad": {"lr": 0.02, "eps": EPS}}
DENSE = {"adagrad": {"adagrad": {"lr": 0.01, "eps": EPS}}, "adam": {"adam": {"lr": 0.001}}}


def job(
    kind: str, dense: str = "adagrad", *, factory: bool = False, embedding: str = "rowwiseAdagrad"
) -> tuple[dict[str, Any], RAPJobSpec, FeatureGraph]:
    """Plan 0 with tables of every sharding in turn. `kind`: single ids, lists, or lists with weights."""
    document = plan_job(0, max_rows=500, batch_size=ROWS, dim=64)
    spec = document["spec"]
    numbers, ids = spec["features"][:2]
    spec["features"] = [numbers]
    for i, sharding in enumerate(SHARDINGS):
        table = {"rows": 300 + i, "dim": 64, "sharding": sharding}
        spec["features"].append({**ids, "columns": [f"cat_{i}"], "table": table})
        if kind != "single":
            spec["features"][-1]["ops"] = ids["ops"][:-1]
        if kind == "weighted":
            spec["columns"][f"weight_{i}"] = "list<float32>"
            spec["features"][-1]["weights"] = f"weight_{i}"
    if kind != "single":
        document["metadata"]["annotations"][MEAN_LENGTH] = "3"
    if factory:
        spec["model"] = {"factory": "captured.wide_model:build"}
    spec["optimizer"] = {"dense": DENSE[dense], "embedding": {embedding: TABLES[embedding]}}
    parsed = RAPJob.model_validate(document).spec
    graph, problems = compile_features(parsed)
    assert graph is not None, problems
    return document, parsed, graph


def batches(document: dict[str, Any], world: World, num: int = NUM_BATCHES) -> list[RawBatch]:
    raws = [synthetic_batch(document, ROWS, seed=100 * world.rank + i + 1) for i in range(num)]
    return [replace(raw, global_rows=raw.num_rows * world.size) for raw in raws]


def losses(runtime: Any, raws: list[RawBatch]) -> list[float]:
    """As the loop drives a runtime: prepare the next step, train the one before. Summed over the ranks."""
    found, pending = [], None
    for raw in [*raws, None]:
        upcoming = None if raw is None else runtime.prepare(raw)
        if pending is not None:
            state = runtime.train(pending)
            total = torch.as_tensor(state.loss_sum).detach().clone().view(1) / state.raw.global_rows
            torch.cuda.synchronize()
            dist.all_reduce(total)
            found.append(float(total))
        pending = upcoming
    return found


def eager(model: ShardedModel, graph: FeatureGraph, world: World) -> EagerRuntime:
    evaluator = Evaluator(EvaluationSpec(), world.device)
    stages = training_stages(model, Program(graph).run, evaluator, world_size=world.size, device=world.device)
    return EagerRuntime(stages, device=world.device)


def both(
    world: World, made: tuple[dict[str, Any], RAPJobSpec, FeatureGraph], raws: list[RawBatch], *, exchange: str = "auto"
) -> tuple[list[float], list[float], ShardedModel, ShardedModel, Form]:
    """Losses of the captured and the eager runtime, and their models."""
    _, spec, graph = made
    reference, mine = build(spec, graph, world), build(spec, graph, world)
    expected = losses(eager(reference, graph, world), raws)
    runtime = CapturedRuntime(mine, graph, world, batch_size=ROWS, precision="fp32", tuning=Tuning(exchange=exchange))
    got = losses(runtime, raws)
    runtime.synchronise_state()
    form = runtime._form
    runtime.close()
    return got, expected, mine, reference, form


def compare(world: World, kind: str, *, factory: bool = False, exchange: str = "auto") -> None:
    made = job(kind, factory=factory)
    got, expected, mine, reference, form = both(world, made, batches(made[0], world), exchange=exchange)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert (form is Form.LISTS) == (kind != "single")
    equal_states(mine, reference)


def on_rank(rank: int, port: int, exchange: str) -> None:
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
    )
    world = join_world(use_gpu=True)
    for kind in ("single", "weighted"):
        compare(world, kind, exchange=exchange)
    dist.destroy_process_group()
