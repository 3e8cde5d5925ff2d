"""Rows of a matrix in pinned host memory to the device in one asynchronous call, whatever their pitches.

torch copies a matrix with gaps between its rows through memory of its own, waiting; CUDA does not. On a CPU plain copies.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """Where the rows of a matrix lie."""

    address: int
    pitch: int
    """Bytes from one row to the next."""


def copy_rows(target: Rows, source: Rows, *, num_bytes: int, num_rows: int, on_device: bool) -> None:
    """The first `num_bytes` of each row, on the current stream. Raises RuntimeError."""
    if not on_device:
        for row in range(num_rows):
            ctypes.memmove(target.address + row * target.pitch, source.address + row * source.pitch, num_bytes)
        return
    from cuda.bindings import runtime  # type: ignore[import-untyped]  # it ships no types

    kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
    stream = torch.cuda.current_stream().cuda_stream
    (error,) = runtime.cudaMemcpy2DAsync(
        target.address, target.pitch, source.address, source.pitch, num_bytes, num_rows, kind, stream
    )
    if int(error) != 0:
        raise RuntimeError(f"a copy to the device failed: {error}")
