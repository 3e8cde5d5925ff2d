"""Blocks of memory that one process fills and the others of its host map: used again once nobody looks at them.

A block is a file without a name (memfd), so a crash leaves nothing behind and the size of /dev/shm does not matter. Its
first page holds one byte a reader, which the writer sets and that reader clears when its last view is gone. Fresh pages
cost three times as long to fill as used ones (33 and 10 ms for 32 MiB, a busy 2-core Xeon, 2026-11), hence the reuse.
How a reader learns of a block is not decided here.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES = mmap.PAGESIZE
MOST_FREE_BYTES = 128 << 20  # held for later: one read-ahead of a source (`files.py`)
_GRAIN_BYTES = 1 << 20
Bytes = npt.NDArray[np.uint8]


class SharedBlock:
    """A block on the side that fills it."""

    def __init__(self, num_bytes: int, *, readers: int) -> None:
        self.num_bytes = -(-num_bytes // _GRAIN_BYTES) * _GRAIN_BYTES
        self.file = os.memfd_create("rap-chunk", os.MFD_CLOEXEC)
        os.ftruncate(self.file, HEADER_BYTES + self.num_bytes)
        self._map = np.frombuffer(mmap.mmap(self.file, HEADER_BYTES + self.num_bytes), np.uint8)
        self._used = self._map[:readers]
        self.data: Bytes = self._map[HEADER_BYTES:]

    @property
    def free(self) -> bool:
        return not self._used.any()

    def lend(self) -> None:
        """From now on every reader looks at it, until it says otherwise."""
        self._used[:] = 1

    def close(self) -> None:
        """Gives the file back; readers keep what they have mapped."""
        os.close(self.file)


class SharedBlocks:
    """The blocks of one writer. Not thread-safe."""

    def __init__(self, *, readers: int, most_free_bytes: int = MOST_FREE_BYTES) -> None:
        self._readers, self._most_free_bytes = readers, most_free_bytes
        self._blocks: list[SharedBlock] = []

    def lent(self, num_bytes: int) -> SharedBlock:
        """A block of at least `num_bytes`, lent to all readers; its content is arbitrary. Raises OSError."""
        free = [block for block in self._blocks if block.free]
        block = next(
            (block for block in free if num_bytes <= block.num_bytes <= 2 * max(num_bytes, _GRAIN_BYTES)), None
        )
        if block is None:
            self._drop(free)
            block = SharedBlock(num_bytes, readers=self._readers)
            self._blocks.append(block)
        block.lend()
        return block

    def close(self) -> None:
        """Gives all files back."""
        self._most_free_bytes = -1
        self._drop(self._blocks)

    def _drop(self, free: list[SharedBlock]) -> None:
        """Closes the oldest free blocks down to the limit."""
        held = sum(block.num_bytes for block in free)
        for block in list(free):
            if held <= self._most_free_bytes:
                return
            self._blocks.remove(block)
            block.close()
            held -= block.num_bytes


class BorrowedBlock:
    """A block on the side of reader number `reader`, for as long as any view of `data` lives."""

    def __init__(self, file: int, *, reader: int) -> None:
        size = os.fstat(file).st_size
        # all pages at once: a fault a page costs more than filling the table for all of them
        self._map = np.frombuffer(mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE), np.uint8)
        self._reader = reader
        self.__array_interface__: dict[str, Any] = self._map[HEADER_BYTES:].__array_interface__

    @property
    def data(self) -> Bytes:
        return np.asarray(self)

    def __del__(self) -> None:
        self._map[self._reader] = 0
