"""Copies from pinned host memory to the device that torch has no call for: rows of a matrix with gaps, and memory by its address.

torch copies a matrix with gaps between its rows through memory of its own, waiting; CUDA does not. On a CPU plain copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

RowCopy = Callable[[int, int, int, int, int, int], None]
"""(target, its pitch, source, its pitch, bytes of a row, rows): addresses, and bytes from one row to the next."""
EachCopy = Callable[[Sequence[int], Sequence[int], Sequence[int]], None]
"""(targets, sources, bytes of each): addresses, any number."""


def row_copies(*, on_device: bool) -> RowCopy:
    """What copies to the device on the stream that is current now. It raises RuntimeError."""
    if not on_device:
        return _copy_on_cpu
    from cuda.bindings import runtime  # type: ignore[import-untyped]  # it ships no types

    kind, stream = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, torch.cuda.current_stream().cuda_stream

    def copy(target: int, pitch: int, source: int, source_pitch: int, num_bytes: int, num_rows: int) -> None:
        (error,) = runtime.cudaMemcpy2DAsync(target, pitch, source, source_pitch, num_bytes, num_rows, kind, stream)
        _check(error)

    return copy


def each_copy(*, on_device: bool) -> EachCopy:
    """The same for tensors that lie anywhere, one call each: 1,263 of them took 4.8 ms, and 7.6 in one cudaMemcpyBatchAsync (H200, 2026-11-30)."""
    if not on_device:
        return _copy_each_on_cpu
    from cuda.bindings import runtime

    kind, stream = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, torch.cuda.current_stream().cuda_stream
    copy_one = runtime.cudaMemcpyAsync

    def copy(targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None:
        for target, source, size in zip(targets, sources, sizes, strict=True):
            (error,) = copy_one(target, source, size, kind, stream)
            _check(error)

    return copy


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"a copy to the device failed: {error}")


def _copy_on_cpu(target: int, pitch: int, source: int, source_pitch: int, num_bytes: int, num_rows: int) -> None:
    for row in range(num_rows):
        ctypes.memmove(target + row * pitch, source + row * source_pitch, num_bytes)


def _copy_each_on_cpu(targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None:
    for target, source, size in zip(targets, sources, sizes, strict=True):
        ctypes.memmove(target, source, size)
