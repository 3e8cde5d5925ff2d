"""Arithmetic of jagged lists that every op shares: offsets, rows of elements, selection.

Shapes: B rows, N elements, M elements of a result, R = B + 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from rap_trainer.ops.value import Jagged


def host_may_look(tensor: torch.Tensor) -> bool:
    """Whether the host can read a tensor's numbers without waiting for a device."""
    return tensor.device.type == "cpu"


def offsets_of(lengths_B: torch.Tensor) -> torch.Tensor:
    """[B + 1] int64: where each list begins; the last is the number of all elements."""
    offsets_R = torch.zeros(lengths_B.numel() + 1, dtype=torch.int64, device=lengths_B.device)
    torch.cumsum(lengths_B, 0, dtype=torch.int64, out=offsets_R[1:])
    return offsets_R


def size_of(lengths_B: torch.Tensor, bound: int) -> int:
    """Elements to allocate: the exact number where the host may look (CPU), else `bound`."""
    return int(lengths_B.sum()) if host_may_look(lengths_B) else bound


def rows_of(lengths_B: torch.Tensor, size: int) -> torch.Tensor:
    """[size] int64: the row of each element; B for padding."""
    if host_may_look(lengths_B):
        rows_B = torch.arange(lengths_B.numel())
        return torch.repeat_interleave(rows_B, lengths_B, output_size=size) if size else rows_B[:0]
    return torch.searchsorted(offsets_of(lengths_B)[1:], torch.arange(size, device=lengths_B.device), right=True)


def places(lengths_B: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and position within its row of each of `size` elements. Padding: a valid row, any position."""
    rows_M = rows_of(lengths_B, size)
    if not host_may_look(lengths_B):
        rows_M = rows_M.clamp_(max=max(lengths_B.numel() - 1, 0))
    positions_M = torch.arange(size, device=lengths_B.device) - offsets_of(lengths_B)[rows_M]
    return rows_M, positions_M


def from_starts(starts_B: torch.Tensor, lengths_B: torch.Tensor, size: int) -> torch.Tensor:
    """[size] int64: starts_B[row] + position of each of `size` elements; anything for padding."""
    shifts_B = starts_B - offsets_of(lengths_B)[:-1]
    if host_may_look(lengths_B):
        shifts_M = torch.repeat_interleave(shifts_B, lengths_B, output_size=size) if size else shifts_B[:0]
    else:
        shifts_M = torch.nn.functional.pad(shifts_B, (0, 1))[rows_of(lengths_B, size)]
    return shifts_M + torch.arange(size, device=lengths_B.device)


def take(value: Jagged, index_M: torch.Tensor, lengths_B: torch.Tensor) -> Jagged:
    """Lists made of elements of `value`, weights with them. Padding may hold any index."""
    if not host_may_look(index_M):
        index_M = index_M.clamp(0, max(value.values_N.numel() - 1, 0))
    weights_N = None if value.weights_N is None else value.weights_N[index_M]
    return replace(value, values_N=value.values_N[index_M], lengths_B=lengths_B, weights_N=weights_N)


def select(value: Jagged, keep_N: torch.Tensor) -> Jagged:
    """The elements where `keep_N` is true, in order; no element is null any more."""
    num, device = keep_N.numel(), keep_N.device
    before_R = torch.zeros(num + 1, dtype=torch.int64, device=device)
    torch.cumsum(keep_N, 0, out=before_R[1:])
    lengths_B = before_R[offsets_of(value.lengths_B)].diff().to(torch.int32)
    if host_may_look(keep_N):
        index_M = keep_N.nonzero().squeeze(1)
    else:
        target_N = torch.where(keep_N, before_R[:-1], num)
        index_M = torch.zeros(num + 1, dtype=torch.int64, device=device)
        index_M = index_M.scatter_(0, target_N, torch.arange(num, device=device))[:num]
    return replace(take(value, index_M, lengths_B), nulls_N=None)
