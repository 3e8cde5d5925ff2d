"""How some bytes of every rank get to every rank: by the shortest way there is between where they are.

On one host through memory; of several hosts the first ranks exchange what theirs have said over TCP; where one host does not reach
another's port, over the control group (gloo), which takes six times as long. Not here: what the bytes mean (`agreement.py`).
"""

from __future__ import annotations

import logging
import secrets
import socket
from contextlib import suppress
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rap_trainer.step.host_exchange import HostExchange
from rap_trainer.step.network_exchange import Door, NetworkExchange, connected, opened
from rap_trainer.world import PeerLost, World, own_address, peer_timeout_s

log = logging.getLogger(__name__)


class Gather(Protocol):
    """A way between all ranks. Collective to call."""

    def __call__(self, mine: bytes, /) -> bytes:
        """The bytes of every rank, one after the other. Raises PeerLost."""

    def close(self) -> None:
        """Lets the others know that this rank is gone."""


def gathering(world: World, num_bytes: int) -> Gather:
    """The way for `num_bytes` a rank, of two or more. Collective. Raises PeerLost."""
    door = None
    if world.local_rank == 0 and world.local_size < world.size:
        with suppress(OSError):  # the others hear of it
            door = opened(own_address())
    try:
        return _by_hosts(world, num_bytes, door) or _Gloo(world)
    finally:
        if door is not None:
            door.close()


def _by_hosts(world: World, num_bytes: int, door: socket.socket | None) -> Gather | None:
    """None: some host does not reach another one."""
    word, name = secrets.token_hex(16), f"rap-exchange-{secrets.token_hex(16)}"
    mine = Door.of(door, word) if door is not None else None
    places: list[Any] = [None] * world.size
    dist.all_gather_object(places, (world.local_rank, name, mine), group=world.control_group)
    firsts = [rank for rank, (local_rank, _, _) in enumerate(places) if local_rank == 0]
    first = world.rank - world.local_rank
    sizes = [num_bytes * (end - begin) for begin, end in zip(firsts, [*firsts[1:], world.size], strict=True)]
    host = HostExchange(
        places[first][1],
        rank=world.local_rank,
        size=world.local_size,
        num_bytes=num_bytes,
        answer_bytes=num_bytes * world.size,
        timeout_s=peer_timeout_s(),
    )
    if len(firsts) == 1:
        return host
    network, error = None, None
    doors = [places[rank][2] for rank in firsts]
    if None in doors:
        error = f"rank {firsts[doors.index(None)]} has no address on the way to the first rank"
    elif door is not None:
        try:
            peers = connected(door, doors, firsts.index(world.rank))
        except OSError as failure:
            error = f"rank {world.rank} at {doors[firsts.index(world.rank)].address}: {failure}"
        else:
            network = NetworkExchange(peers, host=firsts.index(world.rank), sizes=sizes, timeout_s=peer_timeout_s())
    errors: list[str | None] = [None] * world.size
    dist.all_gather_object(errors, error, group=world.control_group)
    if any(errors):
        host.close()
        if network is not None:
            network.close()
        if world.rank == 0:
            log.warning("hosts agree over gloo, 0.3 ms a step and more: %s", next(filter(None, errors)))
        return None
    return _Hosts(host, network)


class _Hosts:
    """Ranks of several hosts."""

    def __init__(self, host: HostExchange, network: NetworkExchange | None) -> None:
        self._host, self._network = host, network

    def __call__(self, mine: bytes) -> bytes:
        here = self._host(mine)
        return self._host.answer(None if self._network is None else b"".join(self._network(here)))

    def close(self) -> None:
        self._host.close()
        if self._network is not None:
            self._network.close()


class _Gloo:
    """Ranks anywhere."""

    def __init__(self, world: World) -> None:
        self._world = world

    def close(self) -> None:
        """Nothing: the group is the world's."""

    def __call__(self, mine: bytes) -> bytes:
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self._world.size)]
        try:
            dist.all_gather(received, sent, group=self._world.control_group)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise PeerLost(f"rank {self._world.rank} no longer hears a peer: {reason}") from error
        return b"".join(bytes(each.tolist()) for each in received)
