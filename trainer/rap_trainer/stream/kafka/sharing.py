"""Ranks of a node that share one reader, because the topic has fewer partitions than there are ranks.

Every rank of the node gets every frame, in one order, through one ring in shared memory, and trains its slice of each
step; so all of them know the same positions, and how many ranks there are may change between two attempts. The first
rank of the node runs the reader and hands links to the others over a local socket. If the reader dies, ranks may differ
in what they have got, so the attempt ends and goes on from its checkpoint.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from rap_contract.source import Kafka

from rap_trainer.host_sockets import admitted, knocked, opened
from rap_trainer.stream.kafka import ring
from rap_trainer.stream.kafka.client import client_options
from rap_trainer.stream.kafka.feed import Unavailable
from rap_trainer.stream.kafka.frames import ReaderOptions
from rap_trainer.stream.kafka.reader_process import ReaderProcess
from rap_trainer.stream.kafka.settings import login_of
from rap_trainer.stream.node_sharing import Sharing, sharing_on_node
from rap_trainer.stream.source import SourceError
from rap_trainer.world import World

LOOK_S = 0.1  # for partitions of a topic that is new
ASK_S = 10.0  # for the number of partitions; a broker that is late is reported by the reader, with its reason


def agree_on_sharing(kafka: Kafka, world: World) -> Sharing | None:
    """Whether ranks share readers: if the topic has fewer partitions than there are ranks. Collective."""
    if world.size == 1:
        return None
    answers: list[Any] = [_num_partitions(kafka) if world.rank == 0 else None]
    dist.broadcast_object_list(answers, src=0, group=world.control_group)
    num_partitions = answers[0]
    return None if not num_partitions or num_partitions >= world.size else sharing_on_node(world)


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

    def __init__(self, options: ReaderOptions, sharing: Sharing, *, ring_bytes: int) -> None:
        pairs = [socket.socketpair() for _ in range(sharing.local_size - 1)]
        file = ring.create(ring_bytes)
        try:
            door = opened(sharing.address, guests=len(pairs))
            super().__init__(options, ring_bytes=ring_bytes, others=[theirs for _, theirs in pairs], ring_file=file)
        finally:
            for _, theirs in pairs:
                theirs.close()
        links = [mine for mine, _ in pairs]
        threading.Thread(target=_hand_over, args=(door, links, file), name="rap-kafka-door", daemon=True).start()


class FollowingReader:
    """Another rank's reader. Implements OpenReader."""

    pid = None

    def __init__(self, sharing: Sharing) -> None:
        """Raises Unavailable when the node's first rank does not open its reader in time."""
        try:
            with knocked(sharing.address, sharing.local_rank) as peer:
                _, files, _, _ = socket.recv_fds(peer, 1, 2)
        except OSError as error:
            hint = "hint: see what it says; all ranks of a node must run in one network namespace"
            raise Unavailable(f"this node's first rank did not open its reader: {error}; {hint}") from error
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


def _hand_over(door: socket.socket, links: list[socket.socket], ring_file: int) -> None:
    """Gives each other rank its link and the ring, once all have come."""
    try:
        with suppress(OSError):
            for peer, link in zip(admitted(door, len(links)), links, strict=True):
                with suppress(OSError), peer:
                    socket.send_fds(peer, [b"."], [link.fileno(), ring_file])
    finally:
        for link in links:
            link.close()  # one that nobody took ends the reader
        os.close(ring_file)
