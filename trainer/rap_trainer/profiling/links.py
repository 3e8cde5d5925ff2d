"""What the links between ranks carry: an all-to-all of the group that trains, in large and in small messages."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from rap_contract.profile import Links

from rap_trainer.profiling.found import slowest
from rap_trainer.world import World

LARGE_BYTES = {"cuda": 64 * 2**20, "cpu": 8 * 2**20}  # a rank and repeat: well past what latency decides
SMALL_BYTES = 4096
REPEATS = 5
ALONE = 1e15
"""Bytes a second of a rank that exchanges nothing: no link is ever waited for."""


def links(world: World) -> Links:
    """Collective. One rank has no links; nothing of a plan can cross any."""
    if world.size == 1:
        return Links(bytes_per_second=ALONE)
    small, large = exchange_seconds(world, SMALL_BYTES), exchange_seconds(world, LARGE_BYTES[world.device.type])
    moved = (LARGE_BYTES[world.device.type] - SMALL_BYTES) * (world.size - 1) / world.size
    return Links(bytes_per_second=max(1.0, moved / max(large - small, 1e-9)), latency_seconds=small)


def exchange_seconds(world: World, num_bytes: float) -> float:
    """Median seconds of an all-to-all of so many bytes a rank, of the slowest rank. Collective."""
    if world.size == 1:
        return 0.0
    size = max(1, int(num_bytes) // world.size) * world.size
    given = torch.zeros(size, dtype=torch.uint8, device=world.device)
    taken = torch.zeros_like(given)
    times = []
    for _ in range(REPEATS + 1):
        _wait(world)
        began = time.perf_counter()
        dist.all_to_all_single(taken, given, group=world.data_group)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        times.append(time.perf_counter() - began)
    return slowest(statistics.median(times[1:]), world)


def _wait(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    dist.barrier(world.control_group)
