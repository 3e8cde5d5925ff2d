"""Which runtime a job gets on this rank's device."""

from __future__ import annotations

import logging

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.job import RAPJobSpec
from rap_contract.problem import InvalidDocument, Problem

from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.program import Program
from rap_trainer.step.runtime import EagerRuntime, Runtime
from rap_trainer.step.stages import training_stages
from rap_trainer.world import World

log = logging.getLogger(__name__)


def choose_runtime(
    spec: RAPJobSpec, graph: FeatureGraph, model: ShardedModel, evaluator: Evaluator, world: World
) -> tuple[Runtime, str]:
    """The runtime and its name: captured where it is wanted and can be, eager otherwise, with the reason in the log."""
    wanted, on_gpu = spec.trainer.runtime, world.device.type == "cuda"
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = spec.trainer.precision != "fp32"
    if on_gpu and wanted != "eager":
        from rap_trainer.captured.assemble import CannotCapture  # Triton, and only for GPUs
        from rap_trainer.captured.runtime import CapturedRuntime

        size, precision = spec.trainer.batch_size_per_gpu, spec.trainer.precision
        try:
            captured = CapturedRuntime(model, graph, world, batch_size=size, evaluator=evaluator, precision=precision)
        except (CannotCapture, ValueError) as reason:  # ValueError: the fused kernels have no form of a feature
            if wanted == "captured":
                problem = Problem(
                    path=("spec", "trainer", "runtime"), message=str(reason), hint="use `auto` or `eager`"
                )
                raise InvalidDocument([problem]) from reason
            log.info("eager runtime: %s", reason)
        else:
            return captured, "captured"
    stages = training_stages(
        model,
        Program(graph).run,
        evaluator,
        world_size=world.size,
        device=world.device,
        precision=spec.trainer.precision,
    )
    return EagerRuntime(stages, device=world.device), "eager"
