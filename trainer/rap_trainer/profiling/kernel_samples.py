"""Samples of a job's own kernels: parts of its features, at several batch sizes and list lengths, within a time."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.profile import KernelSample

from rap_trainer.batch import RawBatch
from rap_trainer.plan.launch_work import Sizes
from rap_trainer.plan.program_work import program_work
from rap_trainer.profiling.batches import first_rows, pool, workload_of
from rap_trainer.profiling.subgraphs import parts
from rap_trainer.program import Program

PARTS = 8
ROW_SHARES = (1.0, 0.5, 0.25, 0.125)  # of the job's batch
LENGTH_FACTORS = (1.0, 0.5, 2.0)  # of the job's mean list length
SETS = 3
"""Input sets that runs rotate through, so that inputs are not in the cache."""
GRIDS: tuple[int | None, ...] = (None, 64)
RUNS = 3
"""Of the eager program, of which the median counts."""
MANY_FEATURES = 256
"""Features of a job with lists from which only the whole of it is measured: each part of so many chains compiles anew for minutes."""
MIN_CASES = 8
"""Measured whatever the time: fewer cannot be fitted."""


def fused_samples(
    document: dict[str, Any],
    graph: FeatureGraph,
    *,
    rows: int,
    mean_length: float,
    device: torch.device,
    seconds: float,
) -> list[KernelSample]:
    """Launches of the fused program. GPU only."""
    from rap_trainer.profiling.launches import launch_samples  # Triton

    found: list[KernelSample] = []
    for part, batches in _cases(document, graph, rows, mean_length, device, seconds):
        found += launch_samples(part, batches, device, grids=GRIDS)
    return found


def program_samples(
    document: dict[str, Any],
    graph: FeatureGraph,
    *,
    rows: int,
    mean_length: float,
    device: torch.device,
    seconds: float,
) -> list[KernelSample]:
    """The eager program in one piece."""
    found = []
    on_gpu = device.type == "cuda"
    for part, batches in _cases(document, graph, rows, mean_length, device, seconds):
        program = Program(part)
        nullable = frozenset(name for name, column in batches[0].columns.items() if column.nulls_N is not None)
        work = program_work(
            part, Sizes.of(part, batches[0].num_rows, workload_of(batches), nullable), side_by_side=not on_gpu
        )
        taken = [timed(partial(program.run, batch), device) for batch in (batches[0], *batches[:RUNS])]
        found.append(work.sample(0, programs=None, seconds=statistics.median(taken[1:])))
    return found


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Wall seconds of a run, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _cases(
    document: dict[str, Any], graph: FeatureGraph, rows: int, mean_length: float, device: torch.device, seconds: float
) -> Iterator[tuple[FeatureGraph, Sequence[RawBatch]]]:
    """The whole job first, then parts of it in random order, until the time is up; equal on every rank."""
    until = time.monotonic() + seconds
    has_lists = mean_length != 1 and any(value.is_list for value in graph.columns.values())
    lengths = [mean_length * factor for factor in LENGTH_FACTORS] if has_lists else [mean_length]
    number = PARTS if not has_lists or len(graph.features) <= MANY_FEATURES else 1
    for turn, length in enumerate(lengths):
        pools = [pool(document, rows, mean_length=length, seed=seed, device=device) for seed in range(SETS)]
        cases = [(part, max(1, int(rows * share))) for part in parts(graph, number=number) for share in ROW_SHARES]
        head, rest = cases[: len(ROW_SHARES)], cases[len(ROW_SHARES) :]
        random.Random(turn).shuffle(rest)
        stop = time.monotonic() + (until - time.monotonic()) / (len(lengths) - turn)
        for place, (part, some) in enumerate((*head, *rest)):
            if time.monotonic() > stop and place >= math.ceil(MIN_CASES / len(lengths)):
                break
            yield part, [first_rows(raw, some, part) for raw in pools]
