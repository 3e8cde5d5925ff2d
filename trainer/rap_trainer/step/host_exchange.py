"""The exchange of ranks that share a host: each writes a line into memory that all of them map, and reads the others'.

Nothing is sent and no thread is woken, so it takes what lines take between caches; gloo takes 0.31 ms for the same
between 2 ranks of an idle 32-core host, and 0.96 ms between 8 (2026-11-30). Sockets tell only who is gone: a rank that
dies closes its own, so the first rank knows at once, and the others when that one ends. Not here: what is said, and
ranks of several hosts.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
import zlib
from itertools import accumulate

from rap_trainer.host_sockets import admitted, knocked, opened
from rap_trainer.world import PeerLost

SPIN_S = 100e-6  # of looking without sleeping: several times what ranks are apart when all is well
REST_RATIO = 1 / 16
"""Of the time waited so far, slept before the next look: a wait grows by that share at most."""
MAX_REST_S = 1e-3  # a tenth of the loop's own pause without rows; so many looks take 1 % of a core
CACHE_LINE_BYTES = 64  # lines of two ranks never share one
_ROUND = struct.Struct("=Q")
_CHECKSUM = struct.Struct("=I")


class HostExchange:
    """Collective to make and to call: every rank of this host, by its number there."""

    def __init__(
        self, address: str, *, rank: int, size: int, num_bytes: int, timeout_s: float, answer_bytes: int = 0
    ) -> None:
        """Meets the others under `address`, a name of this host alone. Raises PeerLost.

        A rank says `num_bytes` in each round; `answer_bytes` are those of what the first one may answer.
        """
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._used = [_ROUND.size + said + _CHECKSUM.size for said in [num_bytes] * size + [answer_bytes]]
        whole = [-(-used // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for used in self._used]
        *self._begins, self._turn_bytes = accumulate(whole, initial=0)
        try:
            self._memory = self._meet(address, 2 * self._turn_bytes)
        except OSError as error:
            raise PeerLost(f"rank {rank} does not meet the ranks of its host: {error}") from error
        self._closings = select.poll()
        for peer in self._peers.values():
            self._closings.register(peer, select.POLLIN)  # nobody sends: what is to be read is the end
        self._gone: set[int] = set()
        self._round = 0

    def __call__(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order. Raises PeerLost."""
        self._round += 1
        self._write(self._rank, mine)
        return [mine if other == self._rank else self._hear(other, other) for other in range(self._size)]

    def answer(self, found: bytes | None) -> bytes:
        """What the first rank, and it alone, has found out for all since they spoke. Raises PeerLost."""
        if found is None:
            return self._hear(0, self._size)
        self._write(self._size, found)
        return found

    def close(self) -> None:
        """Lets the others know that this rank is gone."""
        for peer in self._peers.values():
            peer.close()

    def _meet(self, address: str, size: int) -> memoryview:
        """The memory, which the first rank makes and hands to the others over the sockets that then stay open."""
        if self._rank:
            peer = knocked(address, self._rank)
            self._peers = {0: peer}
            _, files, _, _ = socket.recv_fds(peer, 1, 1)
            if not files:
                raise ConnectionAbortedError("the first rank is gone, or turned this one away")
        else:
            files = [os.memfd_create("rap-exchange", os.MFD_CLOEXEC)]
            os.ftruncate(files[0], size)
            self._peers = dict(enumerate(admitted(opened(address, guests=self._size - 1), self._size - 1), start=1))
            for peer in self._peers.values():
                socket.send_fds(peer, [b"."], files)
        try:
            return memoryview(mmap.mmap(files[0], size, mmap.MAP_SHARED | mmap.MAP_POPULATE))
        finally:
            os.close(files[0])

    def _line(self, number: int) -> memoryview:
        """Of a rank, or the answer. Two take turns: who writes in round n has heard all of n - 1, so n - 2 is read by all."""
        begin = self._round % 2 * self._turn_bytes + self._begins[number]
        return self._memory[begin : begin + self._used[number]]

    def _write(self, number: int, said: bytes) -> None:
        line = _ROUND.pack(self._round) + said
        self._line(number)[:] = line + _CHECKSUM.pack(zlib.crc32(line))

    def _hear(self, other: int, number: int) -> bytes:
        line, began_s = self._line(number), time.perf_counter()
        wanted = _ROUND.pack(self._round)
        while True:
            if line[: _ROUND.size] == wanted:
                found = bytes(line)
                body, checksum = found[: -_CHECKSUM.size], found[-_CHECKSUM.size :]
                if _CHECKSUM.pack(zlib.crc32(body)) == checksum:  # whole, in whatever order its bytes arrived
                    return body[_ROUND.size :]
            waited_s = time.perf_counter() - began_s
            if waited_s > SPIN_S:
                self._rest(other, waited_s)

    def _rest(self, other: int, waited_s: float) -> None:
        """Sleeps before the next look. Raises PeerLost if there was a look since somebody needed was gone."""
        for needed in (other, 0):  # without the first rank nobody goes on
            if needed in self._gone:
                raise self._lost(needed, "Connection closed by peer")
        if waited_s >= self._timeout_s:
            raise self._lost(other, f"silent for {self._timeout_s:.0f} s")
        time.sleep(min(MAX_REST_S, waited_s * REST_RATIO))
        closed = {file for file, _ in self._closings.poll(0)}
        for rank, peer in self._peers.items():
            if peer.fileno() in closed:
                self._closings.unregister(peer)
                self._gone.add(rank)

    def _lost(self, other: int, why: str) -> PeerLost:
        return PeerLost(f"rank {self._rank} no longer hears rank {other}: {why}")
