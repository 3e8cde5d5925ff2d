"""A ring of shared memory between one writing process and one reading one: bounded, and freed by lifetime.

The writer reserves room and fills it; how the reader learns of it is not decided here. The reader gets Arrow buffers
of that room without a copy; when the last of them dies, the room is free again. The memory has no name (memfd), so
neither a crash leaves anything behind nor does the size of /dev/shm matter.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_HEADER_BYTES = 64  # the count of freed bytes, on a cache line of its own
_ALIGNMENT = 64  # Arrow's


@dataclass(frozen=True)
class Room:
    """Bytes of the ring, counted from the beginning of time; contiguous in memory."""

    start: int
    end: int


class _Memory:
    def __init__(self, file: int) -> None:
        size = os.fstat(file).st_size
        self.capacity = size - _HEADER_BYTES
        self._map = mmap.mmap(file, size)
        self.freed = np.frombuffer(self._map, np.int64, 1)
        self._bytes = np.frombuffer(self._map, np.uint8, offset=_HEADER_BYTES)

    def view(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        begin = start % self.capacity
        return self._bytes[begin : begin + size]


def create(capacity: int) -> int:
    """A new ring of about `capacity` bytes, as a file descriptor that both sides open and the caller closes."""
    file = os.memfd_create("rap-kafka", os.MFD_CLOEXEC)
    os.ftruncate(file, _HEADER_BYTES + _aligned(capacity))
    return file


class RingWriter:
    """The filling side. Not thread-safe."""

    def __init__(self, file: int) -> None:
        self._memory = _Memory(file)
        self._written = 0

    @property
    def capacity(self) -> int:
        return self._memory.capacity

    def reserve(self, size: int) -> Room | None:
        """Room for `size` bytes, or None while there is none. Raises ValueError for more than the ring holds."""
        if size > self.capacity:
            raise ValueError(f"{size} bytes do not fit into a ring of {self.capacity}")
        start = _aligned(self._written)
        if start % self.capacity + size > self.capacity:  # does not fit before the end: begin again
            start += self.capacity - start % self.capacity
        end = start + size
        if end - int(self._memory.freed[0]) > self.capacity:
            return None
        self._written = end
        return Room(start, end)

    def view(self, room: Room) -> npt.NDArray[np.uint8]:
        """The room's memory, to be filled."""
        return self._memory.view(room.start, room.end - room.start)


class RingReader:
    """The emptying side. Buffers may die in any thread and in any order."""

    def __init__(self, file: int) -> None:
        self._memory = _Memory(file)
        self._lock = threading.RLock()  # a buffer may die while another one of this thread is being freed
        self._leases: deque[_Lease] = deque()
        self._received = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are not free again yet."""
        return self._received - int(self._memory.freed[0])

    @property
    def capacity(self) -> int:
        return self._memory.capacity

    def buffer(self, room: Room) -> pa.Buffer:
        """The room's bytes, read-only by convention; rooms must be asked for in the order they were reserved."""
        lease = _Lease(room.end)
        view = self._memory.view(room.start, room.end - room.start)
        with self._lock:
            self._received = room.end
            self._leases.append(lease)
        return pa.foreign_buffer(view.ctypes.data, len(view), base=_Owner(self, lease, view))

    def free(self, lease: _Lease) -> None:
        """The lease's room is free as soon as all before it are."""
        with self._lock:
            lease.free = True
            while self._leases and self._leases[0].free:
                self._memory.freed[0] = self._leases.popleft().end


class _Lease:
    __slots__ = ("end", "free")

    def __init__(self, end: int) -> None:
        self.end, self.free = end, False


class _Owner:
    """Lives as long as any buffer over its room."""

    def __init__(self, ring: RingReader, lease: _Lease, view: npt.NDArray[np.uint8]) -> None:
        self._ring, self._lease, self._view = ring, lease, view

    def __del__(self) -> None:
        self._ring.free(self._lease)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
