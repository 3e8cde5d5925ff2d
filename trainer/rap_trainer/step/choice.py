"""Which runtime a job gets on this rank's device."""

from __future__ import annotations

import logging
from functools import partial

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.job import RAPJobSpec
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument, Problem

from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.owners.mapped import Mapped
from rap_trainer.plan.fits import PlanRefused
from rap_trainer.program import Program
from rap_trainer.step.runtime import EagerRuntime, Runtime
from rap_trainer.step.stages import Preprocess, training_stages
from rap_trainer.step.windows import StepWindows
from rap_trainer.stream.kept_memory import KEPT
from rap_trainer.world import World

log = logging.getLogger(__name__)


def choose_runtime(
    spec: RAPJobSpec,
    graph: FeatureGraph,
    model: ShardedModel,
    evaluator: Evaluator,
    world: World,
    *,
    plan: Plan | None = None,
) -> tuple[Runtime, str]:
    """The runtime and its name: captured where it is wanted and can be, eager otherwise, with the reason in the log.

    `plan` is run from the first step on; one that does not fit is left out, with the reason in the log.
    """
    wanted, on_gpu = spec.trainer.runtime, world.device.type == "cuda"
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = spec.trainer.precision != "fp32"
    if on_gpu and wanted != "eager":
        from rap_trainer.captured.assemble import CannotCapture  # Triton, and only for GPUs
        from rap_trainer.captured.runtime import CapturedRuntime
        from rap_trainer.captured.schedule import schedule_of
        from rap_trainer.captured.state import Tuning

        size, precision = spec.trainer.batch_size_per_gpu, spec.trainer.precision
        try:
            captured = CapturedRuntime(
                model,
                graph,
                world,
                batch_size=size,
                evaluator=evaluator,
                precision=precision,
                tuning=Tuning(schedule=None if plan is None or plan.owned else schedule_of(plan)),
            )
        except (CannotCapture, ValueError) as reason:  # ValueError: the fused kernels have no form of a feature
            if wanted == "captured":
                problem = Problem(
                    path=("spec", "trainer", "runtime"), message=str(reason), hint="use `auto` or `eager`"
                )
                raise InvalidDocument([problem]) from reason
            log.info("eager runtime: %s", reason)
        else:
            KEPT.pinned = True
            return _under(plan, captured, world), "captured"
    mapped = Mapped(model, graph, world, make=partial(_preprocess, world), rows=spec.trainer.batch_size_per_gpu)
    stages = training_stages(
        model,
        mapped,
        evaluator,
        world_size=world.size,
        device=world.device,
        precision=spec.trainer.precision,
        delivery=mapped.delivery,
    )
    eager = EagerRuntime(
        stages, device=world.device, windows=StepWindows(model.module), refusal=mapped.refusal, remap=mapped.remap
    )
    return _under(plan, eager, world), "eager"


def _under(plan: Plan | None, runtime: Runtime, world: World) -> Runtime:
    """The runtime under the plan, if it takes it: training without a plan is better than no training."""
    if plan is not None:
        try:
            runtime.prepare_plan(plan)
        except PlanRefused as reason:
            if world.rank == 0:
                log.warning("plan %s is not run: %s", plan.hash, reason)
        else:
            runtime.switch_plan()
    return runtime


def _preprocess(world: World, graph: FeatureGraph, rows: int) -> Preprocess:
    """The fused kernels on a GPU, the ops of PyTorch on a CPU and for what the kernels have no form of."""
    if world.device.type != "cuda":
        return Program(graph).run
    from rap_trainer.fusion import FusedProgram, Limits  # Triton, and only for GPUs

    try:
        fused = FusedProgram(graph, world.device, limits=Limits(batch_size=rows))
    except ValueError as reason:
        log.info("preprocessing op by op: %s", reason)
        return Program(graph).run
    torch.cuda.synchronize(world.device)  # tables and scratch are filled on this stream, the kernels run on another
    return fused.run
