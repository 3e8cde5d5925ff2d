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
from typing import Any

from rap_trainer.host_sockets import admitted, knocked, opened
from rap_trainer.world import PeerLost

SPIN_S = 100e-6  # of looking without sleeping: several times what ranks are apart when all is well
REST_RATIO = 1 / 16
"""Of the time waited so far, slept before the next look: a wait grows by that share at most."""
MAX_REST_S = 1e-3  # a tenth of the loop's own pause without rows; so many looks take 1 % of a core
CACHE_LINE_BYTES = 64  # lines of two ranks never share one
_HEAD = "II"
"""Before what a rank says: the round, and the CRC-32 of it that begins with the round, so that a line counts when all of it
has arrived, in whatever order a processor shows its bytes."""
_ROUND = struct.Struct("=I")
_MASK = 0xFFFFFFFF  # of rounds, which begin anew after 2**32


class HostExchange:
    """Collective to make and to call: every rank of this host, by its number there."""

    def __init__(
        self, address: str, *, rank: int, size: int, num_bytes: int, timeout_s: float, answer_bytes: int = 0
    ) -> None:
        """Meets the others under `address`, a name of this host alone. Raises PeerLost.

        A rank says `num_bytes` in each round; `answer_bytes` are those of what the first one may answer.
        """
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._each, self._one = _lines(size, num_bytes), _lines(1, answer_bytes)
        self._line_bytes = self._each.size // size
        self._mine, self._answer = _line(num_bytes), _line(answer_bytes)
        try:
            memory = self._meet(address, 2 * (self._each.size + self._one.size))
        except OSError as error:
            raise PeerLost(f"rank {rank} does not meet the ranks of its host: {error}") from error
        half = len(memory) // 2
        self._turns = memory[:half], memory[half:]
        """Of rounds in turn: who writes in round n has heard all of n - 1, so n - 2 is read by all."""
        self._closings = select.poll()
        for peer in self._peers.values():
            self._closings.register(peer, select.POLLIN)  # nobody sends: what is to be read is the end
        self._gone: set[int] = set()
        self._round = 0

    def __call__(self, mine: bytes) -> bytes:
        """What every rank says, one after the other. Raises PeerLost."""
        self._round = self._round + 1 & _MASK
        self._write(self._mine, self._rank * self._line_bytes, mine)
        return b"".join(self._hear(self._each, 0))

    def answer(self, found: bytes | None) -> bytes:
        """What the first rank, and it alone, has found out for all since they spoke. Raises PeerLost."""
        if found is not None:
            self._write(self._answer, self._each.size, found)
            return found
        return self._hear(self._one, self._each.size)[0]

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

    def _write(self, line: struct.Struct, begin: int, said: bytes) -> None:
        number = self._round
        line.pack_into(self._turns[number & 1], begin, number, zlib.crc32(said, number), said)

    def _hear(self, lines: struct.Struct, begin: int) -> tuple[bytes, ...]:
        """What is said in the lines from `begin` on, once all are of this round."""
        number, began_s = self._round, 0.0
        memory = self._turns[number & 1]
        while True:
            found = lines.unpack_from(memory, begin)
            rounds, said = found[0::3], found[2::3]
            if rounds.count(number) == len(rounds) and tuple(map(zlib.crc32, said, rounds)) == found[1::3]:
                return said
            began_s = began_s or time.perf_counter()
            other = self._unheard(found)
            self._look_at(memory, begin + other * self._line_bytes, began_s + SPIN_S)
            waited_s = time.perf_counter() - began_s
            if waited_s > SPIN_S:
                self._rest(other, waited_s)

    def _unheard(self, found: tuple[Any, ...]) -> int:
        """The first of these lines that is not, or not all of it, of this round; 0 if another look is all it takes."""
        lines = zip(found[0::3], found[1::3], found[2::3], strict=True)
        whole = (heard == self._round and zlib.crc32(said, heard) == checksum for heard, checksum, said in lines)
        return next((i for i, is_whole in enumerate(whole) if not is_whole), 0)

    def _look_at(self, memory: memoryview, begin: int, until_s: float) -> None:
        """Waits for a line to be of this round: for one alone, since each look takes the line from who writes it."""
        number, look, now_s = self._round, _ROUND.unpack_from, time.perf_counter
        while now_s() < until_s and look(memory, begin)[0] != number:
            pass

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


def _lines(number: int, num_bytes: int) -> struct.Struct:
    """So many lines one after the other, each of its own caches' lines."""
    rest = -_line(num_bytes).size % CACHE_LINE_BYTES
    return struct.Struct("=" + f"{_HEAD}{num_bytes}s{rest}x" * number)


def _line(num_bytes: int) -> struct.Struct:
    return struct.Struct(f"={_HEAD}{num_bytes}s")
