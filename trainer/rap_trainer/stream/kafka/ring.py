"""Shared memory between one writing process and its reading ones: bounded slots, freed by lifetime.

The writer reserves slots and fills them; how the readers learn of it is not decided here. A reader gets Arrow buffers
of them without a copy; when the last one over a slot dies in every reader, the slot is free again, in whatever order.
The memory has no name (memfd), so neither a crash leaves anything behind nor does the size of /dev/shm matter.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SLOTS = 64
MAX_READERS = 64
"""For each slot and reader one byte says whether it is in use: set by the writer, cleared by that reader."""
_ALIGNMENT = 4096  # of a slot: more than Arrow's 64 bytes, and whole pages
assert SLOTS * MAX_READERS <= _ALIGNMENT


@dataclass(frozen=True)
class Room:
    """Neighbouring slots from `first` on, of which `size` bytes are used."""

    first: int
    size: int


class _Memory:
    def __init__(self, file: int) -> None:
        size = os.fstat(file).st_size
        self.slot_bytes = (size - _ALIGNMENT) // SLOTS
        # all pages at once, before the first message: a fault a page costs a tenth of what a fresh ring takes to fill
        self._map = mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.used = np.frombuffer(self._map, np.uint8, SLOTS * MAX_READERS).reshape(SLOTS, MAX_READERS)
        self.bytes = np.frombuffer(self._map, np.uint8, offset=_ALIGNMENT)

    def view(self, room: Room) -> npt.NDArray[np.uint8]:
        begin = room.first * self.slot_bytes
        return self.bytes[begin : begin + room.size]

    def slots(self, size: int) -> int:
        return max(1, -(-size // self.slot_bytes))


def create(capacity: int) -> int:
    """A new ring of about `capacity` bytes, as a file descriptor that both sides open and the caller closes."""
    slot_bytes = -(-capacity // (SLOTS * _ALIGNMENT)) * _ALIGNMENT
    file = os.memfd_create("rap-kafka", os.MFD_CLOEXEC)
    os.ftruncate(file, _ALIGNMENT + SLOTS * slot_bytes)
    return file


class RingWriter:
    """The filling side. Not thread-safe."""

    def __init__(self, file: int, *, readers: int = 1) -> None:
        if not 1 <= readers <= MAX_READERS:
            raise ValueError(f"a ring has 1 to {MAX_READERS} readers, not {readers}")
        self._memory = _Memory(file)
        self._readers = readers
        self._next = 0

    @property
    def capacity(self) -> int:
        return SLOTS * self._memory.slot_bytes

    def reserve(self, size: int) -> Room | None:
        """Room for `size` bytes, or None while there is none. Raises ValueError for more than the ring holds."""
        count = self._memory.slots(size)
        if count > SLOTS:
            raise ValueError(f"{size} bytes do not fit into a ring of {self.capacity}")
        used = self._memory.used
        for first in (*range(self._next, SLOTS - count + 1), *range(min(self._next, SLOTS - count + 1))):
            if not used[first : first + count].any():
                used[first : first + count, : self._readers] = 1
                self._next = (first + count) % SLOTS
                return Room(first, size)
        return None

    def view(self, room: Room) -> npt.NDArray[np.uint8]:
        """The room's memory, to be filled."""
        return self._memory.view(room)


class RingReader:
    """The emptying side. Buffers may die in any thread and in any order."""

    def __init__(self, file: int, *, reader: int = 0) -> None:
        self._memory = _Memory(file)
        self._reader = reader
        self._lock = threading.RLock()  # a buffer may die while another one of this thread is being freed
        self._held = 0

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """All slots, as this process sees them."""
        return self._memory.bytes

    @property
    def held_ratio(self) -> float:
        """Share of the slots under living buffers."""
        return self._held / SLOTS

    def buffer(self, room: Room) -> pa.Buffer:
        """The room's bytes, read-only by convention."""
        view = self._memory.view(room)
        with self._lock:
            self._held += self._memory.slots(room.size)
        return pa.foreign_buffer(view.ctypes.data, len(view), base=_Owner(self, room, view))

    def free(self, room: Room) -> None:
        """Nobody looks at the room any more."""
        count = self._memory.slots(room.size)
        with self._lock:
            self._held -= count
        self._memory.used[room.first : room.first + count, self._reader] = 0


class _Owner:
    """Lives as long as any buffer over its room."""

    def __init__(self, ring: RingReader, room: Room, view: npt.NDArray[np.uint8]) -> None:
        self._ring, self._room, self._view = ring, room, view

    def __del__(self) -> None:
        self._ring.free(self._room)
