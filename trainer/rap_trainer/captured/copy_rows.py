"""Copies from host memory to the device that torch has no call for: rows of a matrix with gaps, and memory by its address.

torch copies a matrix with gaps between its rows through memory of its own, waiting; CUDA does not. On a CPU plain copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch


class Copier:
    """Enqueues on one stream; None: copies at once, on a CPU. Raises RuntimeError.

    Pinned memory must stay until the copy is done; other memory is read before a call returns, and slowly if it is large.
    """

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.one: Callable[[int, int, int], None] = _one_on_cpu
        """(target, source, bytes): addresses. 1,263 calls took 4.8 ms, and 7.6 as one cudaMemcpyBatchAsync (H200, 2026-11-30)."""
        self.rows: Callable[[int, int, int, int, int, int], None] = _rows_on_cpu
        """(target, its pitch, source, its pitch, bytes of a row, rows): pitches are bytes from one row to the next."""
        if stream is None:
            return
        from cuda.bindings import runtime  # type: ignore[import-untyped]  # it ships no types

        kind, handle = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, stream.cuda_stream
        copy, copy_rows = runtime.cudaMemcpyAsync, runtime.cudaMemcpy2DAsync

        def one(target: int, source: int, num_bytes: int) -> None:
            (error,) = copy(target, source, num_bytes, kind, handle)
            if error:
                raise RuntimeError(f"a copy to the device failed: {error}")

        def rows(target: int, pitch: int, source: int, source_pitch: int, num_bytes: int, num_rows: int) -> None:
            if num_bytes == pitch == source_pitch:
                one(target, source, num_bytes * num_rows)
                return
            (error,) = copy_rows(target, pitch, source, source_pitch, num_bytes, num_rows, kind, handle)
            if error:
                raise RuntimeError(f"a copy to the device failed: {error}")

        self.one, self.rows = one, rows


def _one_on_cpu(target: int, source: int, num_bytes: int) -> None:
    ctypes.memmove(target, source, num_bytes)


def _rows_on_cpu(target: int, pitch: int, source: int, source_pitch: int, num_bytes: int, num_rows: int) -> None:
    for row in range(num_rows):
        ctypes.memmove(target + row * pitch, source + row * source_pitch, num_bytes)
