# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Dot interaction of few features: a program holds the whole tile of one sample at a time.

The tile [TILE, D] is loaded straight from the bottom MLP's output, the own lookup output and the peers' blocks (rows past
the features are zero, so that the products run on tensor cores), and the model's columns are written in place.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_pointers(bottom_ptr, own_ptr, peer_ptr, origin, start):
    """Pointer to each row of the tile; every row starts at a multiple of 16 bytes."""
    rest = tl.where(origin == 1, own_ptr + start, peer_ptr + start)
    return tl.multiple_of(tl.where(origin == 0, bottom_ptr + start, rest), 16)


@triton.jit
def to_scale(products, PRECISION: tl.constexpr):
    """Results of a matrix product as large as they should be.

    In tf32 each operand's last 13 bits are cut off, towards zero: 2^-11 / m for a mantissa m, 3.522e-4 on average over log-uniform
    mantissas. Uncorrected, the held-out NE drifts from the eager runtime's; rounding each operand instead costs the loads their
    pipeline (25 -> 40 us forward, 52 -> 73 backward, 28 features, H200, 2026-11-30).
    """
    if PRECISION == "tf32":
        products = products * 1.000705
    return products


@triton.jit
def _load_present(present_ptr, b, B, F, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Which rows of the tile the sample has, [TILE]; none past the last sample. Rows are in the order of `present`."""
    k = tl.arange(0, TILE)
    present = (k < F) & (b < B)
    if MASKED:
        held = tl.load(present_ptr + b * (F - 1) + k - 1, mask=(k > 0) & present, other=1)
        present = present & (held != 0)
    return present


@triton.jit
def _pair_columns(position, F, D: tl.constexpr, TILE: tl.constexpr):
    i = tl.broadcast_to(position[:, None], (TILE, TILE))
    j = tl.broadcast_to(position[None, :], (TILE, TILE))
    low = tl.minimum(i, j)
    high = tl.maximum(i, j)
    column = D + low * (2 * F - low - 1) // 2 + (high - low - 1)
    return column, (i != j) & (high < F), i < j


@triton.jit
def narrow_forward_kernel(
    bottom_ptr,
    own_ptr,
    peer_ptr,
    present_ptr,
    out_ptr,
    position_ptr,
    origin_ptr,
    offset_ptr,
    stride_ptr,
    begin,
    B,
    F,
    out_stride,
    TILE: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Row b of out_BK1: the bottom MLP's output, then the products of all pairs. Programs stride over the rows `begin` to B."""
    k = tl.arange(0, TILE)
    d = tl.arange(0, D)
    position = tl.load(position_ptr + k)
    origin = tl.load(origin_ptr + k)
    offset = tl.load(offset_ptr + k)
    stride = tl.load(stride_ptr + k)
    column, valid, upper = _pair_columns(position, F, D, TILE)
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        b = begin + tl.program_id(0) + turn * tl.num_programs(0)
        present = _load_present(present_ptr, b, B, F, TILE, MASKED)
        row = row_pointers(bottom_ptr, own_ptr, peer_ptr, origin, offset + stride * b)
        tile = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
        products = to_scale(tl.dot(tile, tl.trans(tile), input_precision=PRECISION), PRECISION)
        to = out_ptr + b * out_stride
        tl.store(to + column, products, mask=valid & upper & (b < B))
        here = (d < D) & (b < B)
        tl.store(to + d, tl.load(bottom_ptr + b * D + d, mask=here, other=0.0), mask=here)


@triton.jit
def narrow_backward_kernel(
    bottom_ptr,
    own_ptr,
    peer_ptr,
    present_ptr,
    grad_ptr,
    grad_bottom_ptr,
    grad_own_ptr,
    grad_peer_ptr,
    position_ptr,
    origin_ptr,
    offset_ptr,
    stride_ptr,
    B,
    F,
    grad_stride,
    TILE: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients of the tile through the pairs, from grad_BK1, in the very layout the exchange sends.

    The bottom MLP's row lacks its direct gradient and the mask of its ReLU (`pointwise.bottom_gradient`).
    """
    k = tl.arange(0, TILE)
    d = tl.arange(0, D)
    position = tl.load(position_ptr + k)
    origin = tl.load(origin_ptr + k)
    offset = tl.load(offset_ptr + k)
    stride = tl.load(stride_ptr + k)
    column, valid, _ = _pair_columns(position, F, D, TILE)
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        b = tl.program_id(0) + turn * tl.num_programs(0)
        present = _load_present(present_ptr, b, B, F, TILE, MASKED)
        start = offset + stride * b
        row = row_pointers(bottom_ptr, own_ptr, peer_ptr, origin, start)
        tile = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
        pairs = tl.load(grad_ptr + b * grad_stride + column, mask=valid & present[:, None], other=0.0)
        grad = to_scale(tl.dot(pairs, tile, input_precision=PRECISION), PRECISION)
        to = row_pointers(grad_bottom_ptr, grad_own_ptr, grad_peer_ptr, origin, start)
        tl.store(to[:, None] + d[None, :], grad, mask=((k < F) & (b < B))[:, None])
