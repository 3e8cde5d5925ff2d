"""Jobs, batches and both runtimes for the tests of the captured runtime on a GPU."""

from __future__ import annotations

from typing import Any

from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob, RAPJobSpec
from rap_trainer.batch import RawBatch
from rap_trainer.bench.blocks import with_blocks
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import ShardedModel, shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program
from rap_trainer.step.runtime import EagerRuntime
from rap_trainer.step.stages import training_stages
from rap_trainer.world import World

ROWS = 512
NUM_BATCHES = 6


def job(**optimizer: Any) -> tuple[dict[str, Any], RAPJobSpec, FeatureGraph]:
    document = plan_job(0, max_rows=2000, batch_size=ROWS, dim=128)
    document["spec"]["optimizer"] = {
        "dense": optimizer.get("dense", {"adagrad": {"lr": 0.01}}),
        "embedding": optimizer.get("embedding", {"rowwiseAdagrad": {"lr": 0.02}}),
    }
    if optimizer.get("model"):
        document["spec"]["model"] = optimizer["model"]
    spec = RAPJob.model_validate(document).spec
    graph, problems = compile_features(spec)
    assert graph is not None, problems
    return document, spec, graph


def build(spec: RAPJobSpec, graph: FeatureGraph, world: World) -> ShardedModel:
    return shard_model(build_model(spec, embedding_bag_collection(graph), num_dense=graph.dense_width), spec, world)


def batches(document: dict[str, Any], graph: FeatureGraph, rows: int = ROWS) -> list[RawBatch]:
    """Every other one in blocks, as sources deliver them where every list has one element, and half of these pinned."""
    raws = [synthetic_batch(document, rows, seed=i + 1) for i in range(NUM_BATCHES)]
    return [with_blocks(raw, graph, pinned=i % 4 == 3) if i % 2 else raw for i, raw in enumerate(raws)]


class Trainee:
    """A runtime driven as the loop drives it: prepare the next step, train the one before."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime

    def losses(self, raws: list[RawBatch]) -> list[float]:
        found, pending = [], None
        for raw in [*raws, None]:
            upcoming = None if raw is None else self.runtime.prepare(raw)
            if pending is not None:
                state = self.runtime.train(pending)
                found.append(float(state.loss_sum) / state.raw.global_rows)
            pending = upcoming
        return found


def eager(
    model: ShardedModel,
    graph: FeatureGraph,
    evaluator: Evaluator,
    world: World,
    *,
    precision: str = "fp32",
) -> Trainee:
    run = Program(graph).run
    stages = training_stages(model, run, evaluator, world_size=world.size, device=world.device, precision=precision)
    return Trainee(EagerRuntime(stages, device=world.device))


def captured(
    model: ShardedModel, graph: FeatureGraph, evaluator: Evaluator | None, world: World, **options: Any
) -> Trainee:
    options = {"batch_size": ROWS, "precision": "fp32", **options}
    return Trainee(CapturedRuntime(model, graph, world, evaluator=evaluator, **options))
