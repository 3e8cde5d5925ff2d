"""The profile of a job whose step is captured: kernels alone, windows of the real step, links. GPU only; collective."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rap_contract.graph import FeatureGraph
from rap_contract.job import RAPJob
from rap_contract.profile import KernelSample, Profile
from rap_planner.cost import Costs
from rap_planner.fit import fit
from rap_planner.loads import Estimator
from rap_planner.work import mean_lengths

from rap_trainer.captured.assemble import Assembly
from rap_trainer.captured.step import Preprocessor
from rap_trainer.plan_inputs import task_for
from rap_trainer.profiling.batches import pool, shape_of, workload_of
from rap_trainer.profiling.captured_windows import GRIDS, CapturedWindows
from rap_trainer.profiling.device import device_of
from rap_trainer.profiling.found import of_first_rank, placed_nowhere
from rap_trainer.profiling.kernel_samples import fused_samples
from rap_trainer.profiling.links import exchange_seconds, links
from rap_trainer.profiling.own_work import with_own_work
from rap_trainer.world import World

SHORTEST_S = 5e-6
"""Of the probes alone; about a launch."""
REACH = (0.5, 1.0, 2.0, 4.0)
"""Lengths of the probes, of all the job's kernels together."""
KERNEL_SHARE = 0.5
"""Of the time there is, for kernels alone at most; the rest is for windows."""
ID_BYTES = 8


def captured_profile(
    document: dict[str, Any],
    graph: FeatureGraph,
    assembly: Assembly,
    world: World,
    *,
    rows: int,
    mean_length: float,
    date: str,
    model_hash: str | None,
    seconds: float,
    host_gap_seconds: float | None = None,
    others: Sequence[KernelSample] = (),
    own: Preprocessor | None = None,
    grids: Sequence[int | None] = GRIDS,
) -> Profile:
    """Collective; the same on every rank. The slots of the assembly must hold batches.

    `host_gap_seconds`: where they are known. `others`: kernels of other jobs, by which kinds of kernels are priced. `own`: the
    job's preprocessing, which takes the probes' place in a long step: its many short kernels fit a window otherwise than a probe does.
    """
    began = time.monotonic()
    samples = of_first_rank(
        fused_samples(
            document, graph, rows=rows, mean_length=mean_length, device=world.device, seconds=seconds * KERNEL_SHARE
        ),
        world,
    )
    lengths = probe_lengths(samples)
    left = seconds - (time.monotonic() - began)
    windows = CapturedWindows(assembly, world)
    found = windows.find(grids=grids, lengths=lengths, seconds=left, own=own)
    workload = workload_of([pool(document, rows, mean_length=mean_length, seed=0, device=world.device)])
    sizes = mean_lengths(graph, workload)
    num_ids = rows * sum(sizes[feature.node] for feature in graph.sparse)
    input_dist = exchange_seconds(world, num_ids * ID_BYTES)
    profile = Profile(
        device=device_of(world.device),
        date=date,
        source=f"rap profile, captured step, exchange {assembly.exchange.name}, {len(samples)} kernel samples",
        model_hash=model_hash,
        runtime="captured",
        batch_size=rows,
        num_ranks=world.size,
        step_seconds=found.step_seconds,
        windows=(
            *found.windows(input_dist),
            *placed_nowhere(optimizer=windows.optimizer_seconds(), host_gaps=host_gap_seconds),
        ),
        links=links(world),
        coefficients=fit(samples, others=others),
        list_shape=shape_of(workload),
        samples=samples,
    )
    if found.own is None:
        return profile
    estimator = Estimator(Costs(profile), task_for(RAPJob.model_validate(document), profile, workload=workload))
    predicted_s = {grid: estimator.inline_seconds(grid) for _, grid in found.own}
    return with_own_work(profile, found.own, predicted_s=predicted_s)


def probe_lengths(samples: Sequence[KernelSample]) -> tuple[float, ...]:
    """Seconds of the probes alone: around what the job's kernels take together."""
    whole: dict[int, float] = {}
    for sample in samples:
        if sample.programs is None:
            whole[sample.launch] = max(whole.get(sample.launch, 0.0), sample.seconds)
    total = sum(whole.values())
    return tuple(max(SHORTEST_S * (place + 1), total * reach) for place, reach in enumerate(REACH))
