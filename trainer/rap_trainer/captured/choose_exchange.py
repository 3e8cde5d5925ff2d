"""Chooses the exchange by measurement: what the ranks' links and copy engines do here, not what they should do.

Copy engines need one NVLink domain and symmetric memory; where a rank cannot have them, all ranks take NCCL.
"""

from __future__ import annotations

import logging
import statistics

import torch
import torch.distributed as dist

from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.exchange import Exchange, LocalExchange
from rap_trainer.captured.nccl_exchange import NcclExchange
from rap_trainer.captured.symmetric_exchange import SymmetricExchange
from rap_trainer.world import World

log = logging.getLogger(__name__)

KINDS = ("copy-engine", "nccl")
REPEATS = 20


def make_exchange(kind: str, blocks: Blocks, world: World) -> Exchange:
    """An exchange by name: auto (measured), copy-engine, or nccl. Collective. Raises ValueError, RuntimeError."""
    if world.size == 1:
        return LocalExchange(blocks, world.device)
    if kind == "copy-engine":
        return SymmetricExchange(blocks, world.device, world.data_group)
    if kind == "nccl" or (kind == "auto" and world.local_size != world.size):
        return NcclExchange(blocks, world.device, world.data_group)
    if kind != "auto":
        raise ValueError(f"unknown exchange {kind!r}, one of auto, {', '.join(KINDS)}")
    return _fastest(blocks, world)


def _fastest(blocks: Blocks, world: World) -> Exchange:
    copies, reason = _copy_engines(blocks, world)
    nccl = NcclExchange(blocks, world.device, world.data_group)
    if copies is None:
        log.info("exchange: nccl, since copy engines cannot be used: %s", reason)
        return nccl
    times = {each.name: _milliseconds(each, blocks, world) for each in (copies, nccl)}
    chosen: Exchange = copies if times[copies.name] <= times[nccl.name] else nccl
    log.info("exchange: %s, measured %s ms there and back", chosen.name, times)
    return chosen


def _copy_engines(blocks: Blocks, world: World) -> tuple[SymmetricExchange | None, str]:
    """The copy engines' exchange if every rank can have it."""
    able = all(
        peer == world.device.index or torch.cuda.can_device_access_peer(world.device, peer)
        for peer in range(world.local_size)
    )
    flag = torch.tensor([int(able)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=world.control_group)
    if not flag:
        return None, "some GPU cannot reach a peer's memory"
    try:
        return SymmetricExchange(blocks, world.device, world.data_group), ""
    except RuntimeError as error:
        return None, str(error)


def _milliseconds(exchange: Exchange, blocks: Blocks, world: World) -> float:
    """Median time of both exchanges in a CUDA graph, as the step runs them, of the slowest rank.

    Called from the host instead, copy engines would look slow: their streams and events cost the host more.
    """
    rows = slice(0, blocks.batch_size)
    pooled = torch.zeros(blocks.world_size * blocks.batch_size * blocks.own_width, device=world.device)
    stream = torch.cuda.Stream(world.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream(world.device))
    with torch.cuda.stream(stream):
        exchange.send_pooled(pooled, rows)
        exchange.send_grads()
    torch.cuda.synchronize(world.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        exchange.send_pooled(pooled, rows)
        exchange.send_grads()
    times = []
    for _ in range(REPEATS):
        dist.barrier(world.control_group)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # untyped
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    graph.reset()
    slowest = torch.tensor([statistics.median(times)])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=world.control_group)
    return round(float(slowest), 3)
