"""Ranks of a node that share what one of them decodes: the first reads files, the others map the rows it made.

All of them get every chunk in one order and cut their own slices, as if each had read the files itself; so sharing
changes neither rows nor positions, and nodes need not agree on it. A chunk travels as memory of `shared_blocks.py`,
named in a packet over a local socket. Where the first rank is gone, the others have lost a peer.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from rap_trainer.host_sockets import admitted, knocked, opened
from rap_trainer.stream.backlog import Chunk
from rap_trainer.stream.chunk_message import End, Message, read
from rap_trainer.stream.shared_blocks import BorrowedBlock, SharedBlocks
from rap_trainer.stream.source import SourceError
from rap_trainer.world import PeerLost, World

LEAST_MAPPED_BYTES = 1 << 20
"""Smaller messages are copied at once, so that many tiny files hold neither maps nor file descriptors."""
_QUEUED_BYTES = 4096  # of a socket, about the kernel's least: a few messages wait in it and no more
_HEADER = struct.Struct("2q")  # bytes in the block, parts of the message


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """One rank's place among the ranks of its node."""

    address: str
    """Name of the node's local socket, without a file."""
    local_rank: int
    local_size: int

    @property
    def leads(self) -> bool:
        """Whether this rank reads for the others, and accounts for what all of them read."""
        return self.local_rank == 0


def sharing_on_node(world: World) -> Sharing | None:
    """This rank's place, or None where it is alone on its node. Collective."""
    if world.size == 1:
        return None
    addresses: list[Any] = [None] * world.size
    dist.all_gather_object(addresses, f"rap-node-{secrets.token_hex(16)}", group=world.control_group)
    if world.local_size == 1:
        return None
    address = addresses[world.rank - world.local_rank]
    return Sharing(address=address, local_rank=world.local_rank, local_size=world.local_size)


class ChunkSender:
    """The side of the rank that reads. For one thread; `stop` may be called from any."""

    def __init__(self, sharing: Sharing) -> None:
        """Opens the door. Raises OSError."""
        self._guests = sharing.local_size - 1
        self._door = opened(sharing.address, guests=self._guests)
        self._peers: list[socket.socket] = []
        self._blocks = SharedBlocks(readers=self._guests)
        self._stopped = False

    def begin(self) -> None:
        """Waits until the other ranks have come. Raises PeerLost."""
        with _losing_a_peer("the other ranks of this node did not come for their rows"):
            self._peers = admitted(self._door, self._guests, gone=lambda: self._stopped)
            for peer in self._peers:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUED_BYTES)
            if self._stopped:
                raise ConnectionAbortedError("stopped")

    def send(self, value: Chunk | End) -> None:
        """Gives every other rank the chunk; waits while one of them has no room. Raises PeerLost, SourceError."""
        message = Message.of(value)
        try:
            block = self._blocks.lent(message.num_bytes)
        except OSError as error:
            hint = "hint: the limits of memory, open files and file size (ulimit -a) bound what ranks of a node share"
            raise SourceError(
                f"no memory for {message.num_bytes} bytes of rows that the ranks of a node share: {error.strerror}; {hint}"
            ) from error
        message.write(block.data)
        header = _HEADER.pack(message.num_bytes, message.num_parts)
        with _losing_a_peer("a rank of this node takes no rows any more"):
            for peer in self._peers:
                socket.send_fds(peer, [header], [block.file])

    def stop(self) -> None:
        """Wakes the thread that waits for the others, or for room."""
        self._stopped = True
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives everything back; what was sent can still be received."""
        for each in (self._door, *self._peers):
            each.close()
        self._blocks.close()


class ChunkReceiver:
    """The side of any other rank. For one thread; `stop` may be called from any."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._peer: socket.socket | None = None
        self._stopped = False

    def receive(self) -> Chunk | End:
        """The next one. Raises PeerLost."""
        with _losing_a_peer("the first rank of this node gives no rows any more"):
            header, files, _, _ = socket.recv_fds(self._met(), _HEADER.size, 1)
            if not header:
                raise ConnectionResetError("connection closed by peer")
        (file,) = files
        num_bytes, num_parts = _HEADER.unpack(header)
        try:
            memory = BorrowedBlock(file, reader=self._sharing.local_rank - 1).data[:num_bytes]
        finally:
            os.close(file)
        return read(memory.copy() if num_bytes < LEAST_MAPPED_BYTES else memory, num_parts)

    def stop(self) -> None:
        """Wakes the thread that waits."""
        self._stopped = True
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Takes nothing any more."""
        if self._peer is not None:
            self._peer.close()

    def _met(self) -> socket.socket:
        if self._peer is None:
            sharing = self._sharing
            self._peer = knocked(sharing.address, sharing.local_rank, gone=lambda: self._stopped)
            if self._stopped:
                raise ConnectionAbortedError("stopped")
        return self._peer


@contextmanager
def _losing_a_peer(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PeerLost(f"{what}: {error}") from error
