"""The profile of a job whose step is eager: its program in one piece, windows of the real step, links. Collective."""

from __future__ import annotations

from typing import Any

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.profile import Profile
from rap_planner.fit import fit

from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.profiling.batches import pool, shape_of, workload_of
from rap_trainer.profiling.device import device_of
from rap_trainer.profiling.eager_windows import EagerWindows
from rap_trainer.profiling.found import of_first_rank, placed_nowhere
from rap_trainer.profiling.kernel_samples import fused_samples, program_samples
from rap_trainer.profiling.links import exchange_seconds, links
from rap_trainer.program import Program
from rap_trainer.world import World

REACH = (0.3, 1.0, 2.5)
"""Lengths of the probes, of what the job's preprocessing takes."""
KERNEL_SHARE = 0.3
"""Of the time there is, for the program alone."""
NUM_BATCHES = 2
ID_BYTES = 8


def eager_profile(
    document: dict[str, Any],
    graph: FeatureGraph,
    model: ShardedModel,
    evaluator: Evaluator,
    world: World,
    *,
    rows: int,
    mean_length: float,
    date: str,
    model_hash: str | None,
    precision: str,
    seconds: float,
) -> Profile:
    """Collective; the same on every rank."""
    # On a GPU the eager runtime calls the fused kernels too, one after the other; on a CPU op by op.
    measure = fused_samples if world.device.type == "cuda" else program_samples
    own = measure(
        document, graph, rows=rows, mean_length=mean_length, device=world.device, seconds=seconds * KERNEL_SHARE
    )
    samples = of_first_rank(own, world)
    program = Program(graph)
    raws = [
        pool(document, rows, mean_length=mean_length, seed=100 * number + world.rank, device=world.device)
        for number in range(NUM_BATCHES)
    ]
    windows = EagerWindows(
        model, evaluator, world, raws=raws, ready=[program.run(raw) for raw in raws], precision=precision
    )
    whole = max(sample.seconds for sample in samples)
    found = windows.find(lengths=[whole * reach for reach in REACH], seconds=seconds * (1 - KERNEL_SHARE))
    windows.close()
    input_dist = exchange_seconds(world, rows * len(graph.sparse) * ID_BYTES * max(mean_length, 1.0))
    return Profile(
        device=device_of(world.device),
        date=date,
        source=f"rap profile, eager step, {torch.get_num_threads()} threads a rank, {len(samples)} samples",
        model_hash=model_hash,
        runtime="eager",
        batch_size=rows,
        num_ranks=world.size,
        step_seconds=found.step_seconds,
        windows=(*found.windows(input_dist), *placed_nowhere(optimizer=found.optimizer_seconds)),
        links=links(world),
        coefficients=fit(samples),
        list_shape=shape_of(workload_of(raws[:1])),
        samples=samples,
    )
