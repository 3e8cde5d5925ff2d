"""Large blocks of host memory that keep their pages from one piece of a stream to the next.

An allocator gives a freed block of tens of megabytes back to the system, and the next piece pays for fresh pages: a fifth
of the time from Parquet to tensors (2 Xeon cores, 2026-11). Blocks come back by lifetime, in whatever order and thread.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

LEAST_BYTES = 1 << 20
"""Arrow's and the C library's pools keep smaller blocks themselves."""
MOST_FREE_BYTES = 256 << 20  # held for later: the read-ahead of a source and the batches in flight


class KeptMemory:
    """Thread-safe: a block may die in any thread, also while another one is being asked for."""

    def __init__(self, most_free_bytes: int = MOST_FREE_BYTES) -> None:
        self._most_free_bytes = most_free_bytes
        self.pinned = False
        """New blocks can be read by a GPU: copies of a batch to it need no copy of their own before. Needs CUDA."""
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    def array(self, num: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """`num` values with arbitrary content; their memory is used again once no view of them is left."""
        dtype = np.dtype(dtype)
        num_bytes = num * dtype.itemsize
        return np.asarray(_Lease(self, self._block(num_bytes)))[:num_bytes].view(dtype)

    def free(self, block: npt.NDArray[np.uint8]) -> None:
        """Nobody looks at the block any more."""
        self._free.append(block)
        while sum(each.nbytes for each in tuple(self._free)) > self._most_free_bytes:
            with contextlib.suppress(IndexError):  # another thread took it
                self._free.popleft()

    def _block(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """A free block of up to twice the size, or a new one."""
        for _ in range(len(self._free)):
            try:
                block = self._free.pop()
            except IndexError:  # another thread took it
                break
            if num_bytes <= block.nbytes <= 2 * num_bytes:
                return block
            self._free.appendleft(block)
        size = -(-num_bytes // LEAST_BYTES) * LEAST_BYTES
        if self.pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(size, np.uint8)


class _Lease:
    """Lives as long as any view of its block."""

    def __init__(self, memory: KeptMemory, block: npt.NDArray[np.uint8]) -> None:
        self._memory, self._block = memory, block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._memory.free(self._block)


KEPT = KeptMemory()
"""Of this process."""
