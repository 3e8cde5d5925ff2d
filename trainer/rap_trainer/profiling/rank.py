"""One rank of `rap profile`: builds the job's model and runtime, measures, and the first rank writes the profile.

torchrun --nproc-per-node N -m rap_trainer.profiling.rank JOB.yaml --out profile.json --date 2026-11-29
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.profile import KernelSample, Profile

from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.jobfile import load_job
from rap_trainer.logs import begin_logging
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plan_inputs import model_hash
from rap_trainer.profiling.batches import pool, shape_of, workload_of
from rap_trainer.profiling.found import of_first_rank, slowest
from rap_trainer.profiling.kernel_samples import fused_samples
from rap_trainer.step.choice import choose_runtime
from rap_trainer.synthetic_batch import MEAN_LENGTH
from rap_trainer.world import World, join_world

if TYPE_CHECKING:
    from rap_trainer.captured.runtime import CapturedRuntime

STEPS, LOOP_STEPS = 4, 32
"""Real steps of the captured runtime before anything is measured, and those that are timed as a whole."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line of a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--mean-length", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--kernels", type=Path, action="append", default=[])
    return parser.parse_args(arguments)


def measure(job: RAPJob, world: World, chosen: argparse.Namespace) -> Profile:
    """The profile of a job on these ranks. Collective. Raises InvalidDocument."""
    spec = job.spec
    graph, problems = compile_features(spec)
    if graph is None:
        raise InvalidDocument(problems)
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    model = shard_model(build_model(spec, embedding_bag_collection(graph), num_dense=graph.dense_width), spec, world)
    evaluator = Evaluator(spec.evaluation, world.device)
    runtime, name = choose_runtime(spec, graph, model, evaluator, world)
    common: dict[str, Any] = {
        "rows": spec.trainer.batch_size_per_gpu,
        "mean_length": chosen.mean_length,
        "date": chosen.date,
        "model_hash": model_hash(job),
        "seconds": chosen.seconds,
    }
    if name == "captured":
        from rap_trainer.captured.runtime import CapturedRuntime
        from rap_trainer.profiling.captured_profile import captured_profile
        from rap_trainer.profiling.captured_windows import CapturedWindows

        assert isinstance(runtime, CapturedRuntime)
        loop_seconds = _loop_seconds(runtime, document, world, common)
        own = CapturedWindows(runtime.assembled, world).seconds_under(runtime.preprocessor, runtime.schedule)
        gap = max(0.0, loop_seconds - own)
        found = [_kernels_of(path, world, chosen) for path in chosen.kernels]
        others = [sample for samples, _ in found for sample in samples]
        profile = captured_profile(
            document,
            graph,
            runtime.assembled,
            world,
            host_gap_seconds=gap,
            others=others,
            own=runtime.preprocessor,
            **common,
        )
        shapes = (profile.list_shape, *(shape for _, shape in found))
        return profile.model_copy(update={"list_shape": next((shape for shape in shapes if shape), ())})
    if chosen.kernels:
        hint = "leave --kernels out: this job's step is eager"
        raise InvalidDocument([Problem(path=(), message="kernels of other jobs are of captured steps", hint=hint)])
    from rap_trainer.profiling.eager_profile import eager_profile

    return eager_profile(document, graph, model, evaluator, world, precision=spec.trainer.precision, **common)


def _kernels_of(
    path: Path, world: World, chosen: argparse.Namespace
) -> tuple[tuple[KernelSample, ...], tuple[float, ...]]:
    """Another job's kernels alone, with lists of the length that its annotation names, and the shape of these. Collective."""
    job = load_job(path)
    graph, problems = compile_features(job.spec)
    if graph is None:
        raise InvalidDocument(problems)
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    rows, seconds = job.spec.trainer.batch_size_per_gpu, chosen.seconds / (2 + len(chosen.kernels))
    length = float(job.metadata.annotations.get(MEAN_LENGTH, "1"))
    own = fused_samples(document, graph, rows=rows, mean_length=length, device=world.device, seconds=seconds)
    batch = pool(document, rows, mean_length=length, seed=0, device=world.device)
    return of_first_rank(own, world), shape_of(workload_of([batch]))


def _loop_seconds(runtime: CapturedRuntime, document: dict[str, Any], world: World, common: Mapping[str, Any]) -> float:
    """Seconds of a step of synthetic batches, as the loop drives it; the slots are full then. Collective."""
    batches = []
    for number in range(2):
        seed = 100 * number + world.rank
        on_gpu = pool(document, common["rows"], mean_length=common["mean_length"], seed=seed, device=world.device)
        batches.append(on_gpu.map(lambda tensor: tensor.cpu().pin_memory()))
    began, pending = 0.0, None
    for number in range(STEPS + LOOP_STEPS + 1):
        upcoming = runtime.prepare(batches[number % len(batches)])
        if pending is not None:
            runtime.train(pending)
        pending = upcoming
        if number == STEPS:
            runtime.fit()
            dist.barrier(world.control_group)
            began = time.perf_counter()
    torch.cuda.synchronize(world.device)
    return slowest((time.perf_counter() - began) / LOOP_STEPS, world)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes; ends the process at once, for graphs and threads are still there."""
    chosen = options(sys.argv[1:] if arguments is None else arguments)
    begin_logging("rap profile")
    job = load_job(chosen.job)
    world = join_world(use_gpu=job.spec.trainer.gpus_per_node > 0)
    profile = measure(job, world, chosen)
    if world.rank == 0:
        aside = chosen.out.with_suffix(".tmp")
        aside.write_text(profile.to_json())
        aside.replace(chosen.out)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
