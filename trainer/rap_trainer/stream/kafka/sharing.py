"""Ranks of a node that share one reader, because the topic has fewer partitions than there are ranks.

Every rank of the node gets every frame, in one order, through one ring in shared memory, and trains its slice of each
step; so all of them know the same positions, and how many ranks there are may change between two attempts. The first
rank of the node runs the reader and hands links to the others over a local socket. If the reader dies, ranks may differ
in what they have got, so the attempt ends and goes on from its checkpoint.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from rap_contract.source import Kafka

from rap_trainer.stream.kafka import ring
from rap_trainer.stream.kafka.client import client_options
from rap_trainer.stream.kafka.feed import Unavailable
from rap_trainer.stream.kafka.frames import ReaderOptions
from rap_trainer.stream.kafka.reader_process import ReaderProcess
from rap_trainer.stream.kafka.settings import login_of
from rap_trainer.stream.source import SourceError
from rap_trainer.world import World

LOOK_S = 0.1  # for the socket of the node's first rank to be there
ASK_S = 10.0  # for the number of partitions; a broker that is late is reported by the reader, with its reason


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """One rank's place among the ranks of its node."""

    address: str
    """Name of the node's local socket, without a file."""
    local_rank: int
    local_size: int

    @property
    def leads(self) -> bool:
        """Whether this rank runs the reader, and accounts for what all of them read."""
        return self.local_rank == 0


def agree_on_sharing(kafka: Kafka, world: World) -> Sharing | None:
    """Whether ranks share readers: if the topic has fewer partitions than there are ranks. Collective."""
    if world.size == 1:
        return None
    answers: list[Any] = [_num_partitions(kafka) if world.rank == 0 else None]
    dist.broadcast_object_list(answers, src=0, group=world.control_group)
    num_partitions = answers[0]
    if not num_partitions or num_partitions >= world.size or world.local_size == 1:
        return None
    addresses: list[Any] = [None] * world.size
    mine = f"rap-kafka-{secrets.token_hex(16)}"
    dist.all_gather_object(addresses, mine, group=world.control_group)
    address = addresses[world.rank - world.local_rank]
    return Sharing(address=address, local_rank=world.local_rank, local_size=world.local_size)


def _num_partitions(kafka: Kafka) -> int:
    """0 where brokers do not say: the reader will tell why."""
    login = None if kafka.auth is None else login_of(kafka.auth)
    try:
        options: Mapping[str, Any] = client_options(kafka.bootstrap_servers, login)
        consumer = KafkaConsumer(**options, bootstrap_timeout_ms=int(1000 * ASK_S), allow_auto_create_topics=False)
    except (KafkaError, SourceError, OSError):
        return 0
    try:
        until_s = time.monotonic() + ASK_S
        while not (partitions := consumer.partitions_for_topic(kafka.topic)) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        return len(partitions or ())
    except KafkaError:
        return 0
    finally:
        consumer.close()


class LeadingReader(ReaderProcess):
    """The reader process of a node, run by its first rank."""

    def __init__(self, options: ReaderOptions, sharing: Sharing, *, ring_bytes: int, wait_s: float) -> None:
        pairs = [socket.socketpair() for _ in range(sharing.local_size - 1)]
        file = ring.create(ring_bytes)
        door = socket.socket(socket.AF_UNIX)
        try:
            door.bind(f"\0{sharing.address}")
            door.listen(len(pairs))
            super().__init__(options, ring_bytes=ring_bytes, others=[theirs for _, theirs in pairs], ring_file=file)
        finally:
            for _, theirs in pairs:
                theirs.close()
        links = [mine for mine, _ in pairs]
        threading.Thread(
            target=_hand_over, args=(door, links, file, wait_s), name="rap-kafka-door", daemon=True
        ).start()


class FollowingReader:
    """Another rank's reader. Implements OpenReader."""

    pid = None

    def __init__(self, sharing: Sharing, *, wait_s: float) -> None:
        """Raises Unavailable when the node's first rank does not open its reader in time."""
        with _knocked(sharing.address, wait_s) as door:
            door.sendall(bytes([sharing.local_rank]))
            _, files, _, _ = socket.recv_fds(door, 1, 2)
        if len(files) != 2:
            raise Unavailable("the first rank of this node refused to share its reader; hint: see what it says")
        link, file = files
        self.link = Connection(link)
        try:
            self.ring = ring.RingReader(file, reader=sharing.local_rank)
        finally:
            os.close(file)

    def ends(self) -> dict[int, int]:
        """The first rank tells them, for all."""
        return {}

    def ended(self) -> str:
        """See OpenReader."""
        self.close()
        return "it is the node's first rank's"

    def close(self) -> None:
        """See OpenReader."""
        self.link.close()


def _hand_over(door: socket.socket, links: list[socket.socket], ring_file: int, wait_s: float) -> None:
    """Gives each other rank of this user its link and the ring."""
    try:
        with door:
            door.settimeout(wait_s)
            for _ in links:
                with suppress(OSError), door.accept()[0] as visitor:
                    visitor.settimeout(wait_s)
                    _, user, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                    number = visitor.recv(1)
                    if user == os.getuid() and number and 1 <= number[0] <= len(links):
                        socket.send_fds(visitor, [b"."], [links[number[0] - 1].fileno(), ring_file])
    finally:
        for link in links:
            link.close()  # one that nobody took ends the reader
        os.close(ring_file)


def _knocked(address: str, wait_s: float) -> socket.socket:
    until_s = time.monotonic() + wait_s
    while True:
        door = socket.socket(socket.AF_UNIX)
        door.settimeout(wait_s)
        try:
            door.connect(f"\0{address}")
        except OSError as error:
            door.close()
            if time.monotonic() >= until_s:
                hint = "hint: see what it says; all ranks of a node must run in one network namespace"
                raise Unavailable(
                    f"this node's first rank did not open its reader in {wait_s:.0f} s; {hint}"
                ) from error
            time.sleep(LOOK_S)
        else:
            return door
