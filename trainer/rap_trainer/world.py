"""The ranks of an attempt: who this is, on which device, and the groups they talk in.

torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) says who; without it this is a world
of one. Not here: starting ranks (`launch.py`) and what they agree on (`step/agreement.py`).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from rap_contract.problem import InvalidDocument, Problem
from torch.distributed import ProcessGroup

PEER_TIMEOUT_S = 120
"""A rank silent for so long is lost. A killed rank shows at once, by its closed connections; this is for lost hosts.
Longer than any pause between two steps seen here (a snapshot of 10 GB of tables takes about 5 s)."""
ENV_PEER_TIMEOUT = "RAP_PEER_TIMEOUT_S"
"""Replaces PEER_TIMEOUT_S."""
SLOW_TIMEOUT_S = 1800
"""For collectives that wait for a disk: writing 100 GB at 100 MB/s and a margin."""


class PeerLost(RuntimeError):
    """Another rank is gone or silent (exit code 6)."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank and its peers."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    data_group: ProcessGroup
    """Tensors of the step: NCCL on GPUs, gloo on CPUs."""
    control_group: ProcessGroup
    """Small host messages before each step; gloo, with a short time-out."""
    checkpoint_group: ProcessGroup
    """For the background thread that writes checkpoints; gloo, patient."""


def join_world(environment: Mapping[str, str] = os.environ, *, use_gpu: bool) -> World:
    """Joins the ranks the environment names. Collective. Raises PeerLost if they do not all come, InvalidDocument."""
    rank = int(environment.get("RANK", "0"))
    size = int(environment.get("WORLD_SIZE", "1"))
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    peer_timeout = timedelta(seconds=peer_timeout_s(environment))
    if use_gpu:
        if torch.cuda.device_count() <= local_rank:
            raise _no_gpu(local_rank)
        torch.cuda.set_device(device)
    try:
        if size == 1:
            dist.init_process_group(_backend(device), store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(
                _backend(device),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=SLOW_TIMEOUT_S),
                device_id=device if use_gpu else None,
            )
        control = dist.new_group(backend="gloo", timeout=peer_timeout)
        checkpoint = dist.new_group(backend="gloo", timeout=timedelta(seconds=SLOW_TIMEOUT_S))
        # Only the meeting may take long: images are pulled on some nodes first.
        dist.distributed_c10d._set_pg_timeout(peer_timeout, dist.group.WORLD)
    except dist.DistError as error:
        raise PeerLost(f"the {size} ranks did not meet at {environment.get('MASTER_ADDR')}: {error}") from error
    assert dist.group.WORLD is not None
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=int(environment.get("LOCAL_WORLD_SIZE", str(size))),
        device=device,
        data_group=dist.group.WORLD,
        control_group=control,
        checkpoint_group=checkpoint,
    )


def peer_timeout_s(environment: Mapping[str, str] = os.environ) -> float:
    """A rank silent for so long is lost."""
    return float(environment.get(ENV_PEER_TIMEOUT, PEER_TIMEOUT_S))


def own_address(environment: Mapping[str, str] = os.environ) -> str:
    """This host's address on the way to the first rank's: what other hosts reach it by. Raises OSError."""
    master = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    family, kind, _, _, address = socket.getaddrinfo(*master, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def leave_world() -> None:
    """Destroys the groups. Only after a run that ended in order: with a lost peer it could hang."""
    if dist.is_initialized():
        dist.destroy_process_group()


_PEER_MESSAGE = re.compile(
    r"gloo|nccl|Connection (closed|reset|refused)|Broken pipe|Socket|Timed out|\btimeout\b|pair closure|Peer closed|TCPStore|recvValue|sendBytes",
    re.IGNORECASE,
)


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error of a collective means that another rank is gone."""
    return isinstance(error, PeerLost | dist.DistError) or (
        isinstance(error, RuntimeError) and _PEER_MESSAGE.search(str(error)) is not None
    )


def _no_gpu(local_rank: int) -> InvalidDocument:
    found = torch.cuda.device_count()
    hint = "lower it, or leave it out to train on CPUs; `nvidia-smi` shows what the driver offers"
    message = f"rank {local_rank} of this node has no GPU: {found} found"
    return InvalidDocument([Problem(path=("spec", "trainer", "gpusPerNode"), message=message, hint=hint)])


def _backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
