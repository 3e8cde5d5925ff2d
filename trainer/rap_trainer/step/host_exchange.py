"""The exchange of ranks that share a host: one packet to the first rank and one back, over local sockets.

gloo takes 0.31 ms for the same between 2 ranks of an idle 32-core host, and 0.96 ms between 8 (2026-11-30): threads hand
it over. Here the rank that waits looks again and again for a moment, as its step is as short. A rank that dies closes its
sockets, so the others know at once. Not here: what is said, and ranks of several hosts.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence

from rap_trainer.host_sockets import admitted, knocked, opened
from rap_trainer.world import PeerLost

SPIN_S = 100e-6  # of looking without sleeping: several times what the others are apart when all is well


class HostExchange:
    """Collective to make and to call: every rank of the world, all on one host."""

    def __init__(self, address: str, *, rank: int, size: int, width: int, timeout_s: float) -> None:
        """Meets the others under `address`, a name of this host alone; `width` int64 numbers a rank. Raises PeerLost."""
        self._rank, self._width, self._timeout_s = rank, width, timeout_s
        self._packet = struct.Struct(f"{width}q")
        self._all = struct.Struct(f"{width * size}q")
        try:
            others = size - 1
            self._peers = [knocked(address, rank)] if rank else admitted(opened(address, guests=others), others)
        except OSError as error:
            raise PeerLost(f"rank {rank} does not meet the ranks of its host: {error}") from error
        for peer in self._peers:
            peer.setblocking(False)

    def __call__(self, mine: Sequence[int]) -> list[tuple[int, ...]]:
        """The numbers of every rank, in rank order. Raises PeerLost."""
        packet = self._packet.pack(*mine)
        if self._rank:
            self._send(0, packet)
            numbers = self._all.unpack(self._receive(0, self._all.size))
        else:
            others = [self._receive(i, self._packet.size) for i in range(len(self._peers))]
            together = b"".join([packet, *others])
            for i in range(len(self._peers)):
                self._send(i, together)
            numbers = self._all.unpack(together)
        return [numbers[begin : begin + self._width] for begin in range(0, len(numbers), self._width)]

    def close(self) -> None:
        """Lets the others know that this rank is gone."""
        for peer in self._peers:
            peer.close()

    def _send(self, index: int, packet: bytes) -> None:
        try:
            self._peers[index].send(packet)  # never blocks: each rank owes an answer before the next
        except OSError as error:
            raise self._lost(index, str(error)) from error

    def _receive(self, index: int, size: int) -> bytes:
        peer = self._peers[index]
        until_s = time.perf_counter() + SPIN_S
        while True:
            try:
                packet = peer.recv(size)
            except BlockingIOError:
                if time.perf_counter() < until_s:
                    continue
                if not select.select([peer], [], [], self._timeout_s)[0]:
                    raise self._lost(index, f"silent for {self._timeout_s:.0f} s") from None
            except OSError as error:
                raise self._lost(index, str(error)) from error
            else:
                if len(packet) != size:
                    raise self._lost(index, "Connection closed by peer")
                return packet

    def _lost(self, index: int, why: str) -> PeerLost:
        other = 0 if self._rank else index + 1
        return PeerLost(f"rank {self._rank} no longer hears rank {other}: {why}")
