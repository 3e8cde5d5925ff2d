# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Dot interaction of many features: a program takes one block of a sample's rows against all blocks.

Nothing but blocks [BLOCK, D] and their products [BLOCK, BLOCK] is held, so any number of features fits. Rows of the
products are stretches of the top MLP's input: loads and stores are coalesced, also below the diagonal, where the transposed
block is read instead. A sample's rows are read once from memory and then from the L2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.captured.narrow_interaction import row_pointers, to_scale


@triton.jit
def _load_present(present_ptr, place_ptr, k, b, B, F, MASKED: tl.constexpr):
    """Which of the rows `k` of the tile the sample has."""
    present = (k < F) & (b < B)
    if MASKED:
        place = tl.load(place_ptr + k)
        held = tl.load(present_ptr + b * (F - 1) + place, mask=(place >= 0) & present, other=1)
        present = present & (held != 0)
    return present


@triton.jit
def _starts(k, b, offset_ptr, stride_ptr):
    """Element of each row's buffer at which the sample begins."""
    return tl.load(offset_ptr + k) + tl.load(stride_ptr + k) * b


@triton.jit
def _columns(i, j, F, D: tl.constexpr):
    """Column of each pair i < j, and whether it is one."""
    row = D + i * (2 * F - i - 1) // 2 - i - 1
    return row[:, None] + j[None, :], (i[:, None] < j[None, :]) & (j < F)[None, :]


@triton.jit
def wide_forward_kernel(
    bottom_ptr,
    own_ptr,
    peer_ptr,
    present_ptr,
    out_ptr,
    origin_ptr,
    offset_ptr,
    stride_ptr,
    place_ptr,
    begin,
    B,
    F,
    out_stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Row b of out_BK1: the bottom MLP's output, then the products of all pairs. Grid: (B - begin) * BLOCKS."""
    b = begin + tl.program_id(0) // BLOCKS
    first = tl.program_id(0) % BLOCKS
    d = tl.arange(0, D)
    to = out_ptr + b.to(tl.int64) * out_stride
    if first == 0:
        tl.store(to + d, tl.load(bottom_ptr + b * D + d))
    i = first * BLOCK + tl.arange(0, BLOCK)
    row = row_pointers(bottom_ptr, own_ptr, peer_ptr, tl.load(origin_ptr + i), _starts(i, b, offset_ptr, stride_ptr))
    present = _load_present(present_ptr, place_ptr, i, b, B, F, MASKED)
    mine = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
    block = first
    while block < BLOCKS:
        j = block * BLOCK + tl.arange(0, BLOCK)
        start = _starts(j, b, offset_ptr, stride_ptr)
        row = row_pointers(bottom_ptr, own_ptr, peer_ptr, tl.load(origin_ptr + j), start)
        present = _load_present(present_ptr, place_ptr, j, b, B, F, MASKED)
        theirs = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
        products = to_scale(tl.dot(mine, tl.trans(theirs), input_precision=PRECISION), PRECISION)
        column, valid = _columns(i, j, F, D)
        tl.store(to + column, products, mask=valid)
        block += 1


@triton.jit
def wide_backward_kernel(
    bottom_ptr,
    own_ptr,
    peer_ptr,
    present_ptr,
    grad_ptr,
    grad_bottom_ptr,
    grad_own_ptr,
    grad_peer_ptr,
    origin_ptr,
    offset_ptr,
    stride_ptr,
    place_ptr,
    B,
    F,
    grad_stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients of a block of rows through all pairs, as `narrow_backward_kernel` gives them. Grid: B * BLOCKS."""
    b = tl.program_id(0) // BLOCKS
    mine = tl.program_id(0) % BLOCKS
    d = tl.arange(0, D)
    grads = grad_ptr + b.to(tl.int64) * grad_stride
    i = mine * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, D], tl.float32)
    for block in tl.range(0, BLOCKS, num_stages=STAGES):
        j = block * BLOCK + tl.arange(0, BLOCK)
        start = _starts(j, b, offset_ptr, stride_ptr)
        row = row_pointers(bottom_ptr, own_ptr, peer_ptr, tl.load(origin_ptr + j), start)
        present = _load_present(present_ptr, place_ptr, j, b, B, F, MASKED)
        theirs = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
        low = tl.where(block < mine, j, i)
        high = tl.where(block < mine, i, j)
        column, valid = _columns(low, high, F, D)
        pairs = tl.load(grads + column, mask=valid, other=0.0)
        if block == mine:
            pairs = pairs + tl.trans(pairs)
        elif block < mine:
            pairs = tl.trans(pairs)
        total = tl.dot(pairs, theirs, total, input_precision=PRECISION)
    total = to_scale(total, PRECISION)
    start = _starts(i, b, offset_ptr, stride_ptr)
    to = row_pointers(grad_bottom_ptr, grad_own_ptr, grad_peer_ptr, tl.load(origin_ptr + i), start)
    present = _load_present(present_ptr, place_ptr, i, b, B, F, MASKED)
    tl.store(to[:, None] + d[None, :], tl.where(present[:, None], total, 0.0), mask=(i < F)[:, None])
