# mypy: disable-error-code="no-untyped-call"
"""Dot interaction without a gather: forward and backward over exchanged blocks, by kernels for few or for many features.

Not here: where rows lie and the reference in plain PyTorch (`tile.py`), which is also the CPU path.

B rows, D dim, S sparse features in rank-major order, K1 padded columns of the top MLP's input.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from rap_trainer.captured.narrow_interaction import narrow_backward_kernel, narrow_forward_kernel
from rap_trainer.captured.tile import FEW, TileGradients, TileMap, backward_twin, forward_twin
from rap_trainer.captured.wide_interaction import wide_backward_kernel, wide_forward_kernel

PROGRAMS_PER_SM = 4
NARROW = {16: (2, 3), 32: (2, 3)}
"""(warps, stages of the software pipeline over samples) by rows of the tile; more features take the wide kernels. One H200,
2026-11-29, batch 4096: 28 features 24.9 us forward and 40.3 us backward (35 and 72 without the pipeline)."""
WIDE_FORWARD = (64, 8)
"""(rows of a block, warps). One H200, 2026-11-30, batch 4096, 105 features, inputs not in the L2: 256 us (whole tile: 508)."""
WIDE_BACKWARD = (32, 4, 1)
"""(rows of a block, warps, stages of the pipeline over blocks). The same: 500 us (whole tile: 512; two stages: 1204)."""


def interaction_forward(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    out_BK1: torch.Tensor,
    tile: TileMap,
    *,
    present_BS: torch.Tensor | None = None,
    precision: str = "tf32",
    rows: slice,
) -> None:
    """Fills columns 0..K-1 of these rows of `out_BK1`; the padding is left as it is (zero). `present_BS`: int8, None: all."""
    if not _on_kernel(bottom_BD):
        forward_twin(bottom_BD, own, peer, out_BK1, tile, present_BS=present_BS, rows=rows)
        return
    held = bottom_BD if present_BS is None else present_BS
    sizes_of_out = (rows.start, rows.stop, tile.num_features, out_BK1.stride(0))
    inputs = (bottom_BD, own, peer, held, out_BK1, *_map(tile), *sizes_of_out)
    same = {"D": tile.dim, "PRECISION": precision, "MASKED": present_BS is not None}
    if tile.num_features <= FEW:
        programs, sizes = _narrow(tile, out_BK1[rows])
        narrow_forward_kernel[(programs,)](*inputs, **sizes, **same)
    else:
        programs, sizes = _wide(tile, out_BK1[rows], *WIDE_FORWARD)
        wide_forward_kernel[(programs,)](*inputs, **sizes, **same)


def interaction_backward(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    grad_BK1: torch.Tensor,
    tile: TileMap,
    *,
    into: TileGradients,
    present_BS: torch.Tensor | None = None,
    precision: str = "tf32",
) -> None:
    """Fills `into` from the gradient of the interaction's output, the bottom row without its direct gradient."""
    if not _on_kernel(bottom_BD):
        backward_twin(bottom_BD, own, peer, grad_BK1, tile, into=into, present_BS=present_BS)
        return
    held = bottom_BD if present_BS is None else present_BS
    outputs = (into.bottom_BD, into.own, into.peer)
    sizes_of_grad = (grad_BK1.shape[0], tile.num_features, grad_BK1.stride(0))
    inputs = (bottom_BD, own, peer, held, grad_BK1, *outputs, *_map(tile), *sizes_of_grad)
    same = {"D": tile.dim, "PRECISION": precision, "MASKED": present_BS is not None}
    if tile.num_features <= FEW:
        programs, sizes = _narrow(tile, grad_BK1)
        narrow_backward_kernel[(programs,)](*inputs, **sizes, **same)
    else:
        block, warps, stages = WIDE_BACKWARD
        programs, sizes = _wide(tile, grad_BK1, block, warps)
        wide_backward_kernel[(programs,)](*inputs, STAGES=stages, **sizes, **same)


def _map(tile: TileMap) -> tuple[torch.Tensor, ...]:
    places = (tile.origin_T, tile.offset_T, tile.stride_T)
    return (tile.position_T, *places) if tile.num_features <= FEW else (*places, tile.place_T)


def _on_kernel(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.float32


def _narrow(tile: TileMap, rows: torch.Tensor) -> tuple[int, dict[str, Any]]:
    """Programs, each with several samples, and what the kernel is compiled for."""
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    turns = triton.cdiv(rows.shape[0], PROGRAMS_PER_SM * processors)
    tile_rows = max(16, triton.next_power_of_2(tile.num_features))
    warps, stages = NARROW[tile_rows]
    sizes = {"TILE": tile_rows, "TURNS": turns, "STAGES": stages, "num_warps": warps}
    return triton.cdiv(rows.shape[0], turns), sizes


def _wide(tile: TileMap, rows: torch.Tensor, block: int, warps: int) -> tuple[int, dict[str, Any]]:
    blocks = triton.cdiv(tile.num_features, block)
    return rows.shape[0] * blocks, {"BLOCK": block, "BLOCKS": blocks, "num_warps": warps}
