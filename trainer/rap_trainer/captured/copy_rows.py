"""Rows of a matrix in pinned host memory to the device in one asynchronous call, whatever their pitches.

torch copies a matrix with gaps between its rows through memory of its own, waiting; CUDA does not. On a CPU plain copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

RowCopy = Callable[[int, int, int, int, int, int], None]
"""(target, its pitch, source, its pitch, bytes of a row, rows): addresses, and bytes from one row to the next."""


def row_copies(*, on_device: bool) -> RowCopy:
    """What copies to the device on the stream that is current now. It raises RuntimeError."""
    if not on_device:
        return _copy_on_cpu
    from cuda.bindings import runtime  # type: ignore[import-untyped]  # it ships no types

    kind, stream = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, torch.cuda.current_stream().cuda_stream

    def copy(target: int, pitch: int, source: int, source_pitch: int, num_bytes: int, num_rows: int) -> None:
        (error,) = runtime.cudaMemcpy2DAsync(target, pitch, source, source_pitch, num_bytes, num_rows, kind, stream)
        if error:
            raise RuntimeError(f"a copy to the device failed: {error}")

    return copy


def _copy_on_cpu(target: int, pitch: int, source: int, source_pitch: int, num_bytes: int, num_rows: int) -> None:
    for row in range(num_rows):
        ctypes.memmove(target + row * pitch, source + row * source_pitch, num_bytes)
