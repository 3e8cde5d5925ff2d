"""The exchange of hosts: the first rank of each sends its bytes to every other one's over TCP, and waits for theirs.

One way through the network and no thread to wake, where gloo's ranks hand everything to threads of theirs. As in
`host_exchange.py`, the rank that waits looks again and again for a moment, and a rank that dies closes its connections.
Not here: what is said, and ranks of the same host.
"""

from __future__ import annotations

import hmac
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from rap_trainer.world import PeerLost

SPIN_S = 100e-6  # as in host_exchange.py; a way through a cluster's network takes 10 to 50 us
MEETING_S = 10.0  # for all hosts to connect: they have just met, so those that can do
_NUMBER_BYTES = 4


class Door(NamedTuple):
    """Where a host's first rank is found, and the word to say there."""

    address: str
    port: int
    word: str

    @classmethod
    def of(cls, listener: socket.socket, word: str) -> Self:
        address, port = listener.getsockname()[:2]
        return cls(address, port, word)


class NetworkExchange:
    """Collective to call: the first rank of every host."""

    def __init__(
        self, peers: Mapping[int, socket.socket], *, host: int, sizes: Sequence[int], timeout_s: float
    ) -> None:
        """`peers` by host, without one's own; `sizes` are the bytes of each host, the same in every round."""
        self._peers, self._host, self._sizes, self._timeout_s = dict(peers), host, sizes, timeout_s
        for peer in self._peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def __call__(self, mine: bytes) -> list[bytes]:
        """The bytes of every host, in order. Raises PeerLost."""
        for host, peer in self._peers.items():
            try:
                sent = peer.send(mine)  # fits into the socket: each host owes an answer before the next
            except OSError as error:
                raise self._lost(host, str(error)) from error
            if sent < len(mine):
                raise self._lost(host, f"it takes {sent} of {len(mine)} bytes")
        return [mine if host == self._host else self._receive(host, size) for host, size in enumerate(self._sizes)]

    def close(self) -> None:
        """Lets the others know that this rank is gone."""
        for peer in self._peers.values():
            peer.close()

    def _receive(self, host: int, size: int) -> bytes:
        peer, found = self._peers[host], b""
        began_s = time.perf_counter()
        while len(found) < size:
            try:
                part = peer.recv(size - len(found))
            except BlockingIOError:
                if time.perf_counter() - began_s > SPIN_S:
                    self._wait(host)
            except OSError as error:
                raise self._lost(host, str(error)) from error
            else:
                if not part:
                    raise self._lost(host, "Connection closed by peer")
                found += part
        return found

    def _wait(self, host: int) -> None:
        look = select.poll()
        look.register(self._peers[host], select.POLLIN)
        if not look.poll(1000 * self._timeout_s):
            raise self._lost(host, f"silent for {self._timeout_s:.0f} s")

    def _lost(self, other: int, why: str) -> PeerLost:
        return PeerLost(f"host {self._host} no longer hears host {other}: {why}")


def opened(address: str) -> socket.socket:
    """Where other hosts' first ranks connect to. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    door = socket.create_server((address, 0), family=family)
    door.settimeout(MEETING_S)
    return door


def connected(door: socket.socket, doors: Sequence[Door], host: int) -> dict[int, socket.socket]:
    """Connections to all other hosts; each connects to those before it. Strangers are turned away. Raises OSError."""
    found: dict[int, socket.socket] = {}
    try:
        for other, (address, port, word) in enumerate(doors[:host]):
            found[other] = socket.create_connection((address, port), MEETING_S)
            found[other].sendall(host.to_bytes(_NUMBER_BYTES, "big") + word.encode())
        until_s = time.monotonic() + MEETING_S
        while len(found) < len(doors) - 1:
            if time.monotonic() >= until_s:
                raise TimeoutError("not all hosts came")
            peer, _ = door.accept()
            peer.settimeout(MEETING_S)
            said = peer.recv(_NUMBER_BYTES + len(doors[host].word), socket.MSG_WAITALL)
            other = int.from_bytes(said[:_NUMBER_BYTES], "big")
            if hmac.compare_digest(said[_NUMBER_BYTES:], doors[host].word.encode()) and other not in found:
                found[other] = peer
            else:
                peer.close()
    except OSError:
        for peer in found.values():
            peer.close()
        raise
    return found
