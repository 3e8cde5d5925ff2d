# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""The kernel of lanes: one number a row, a whole chain in registers, any mix of chains in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.apply import apply_chain
from rap_trainer.fusion.ops.elements import load_element, null_flags, store_scratch
from rap_trainer.fusion.words import (
    KIND_DENSE,
    KIND_IDS,
    KIND_LABEL,
    LANE_BASE,
    LANE_BASE_PER_ROW,
    LANE_CHAIN,
    LANE_DTYPE,
    LANE_DYNAMIC,
    LANE_IS_LIST,
    LANE_KIND,
    LANE_LENGTHS,
    LANE_NULLS,
    LANE_PRESENT,
    LANE_SLOT,
    LANE_STEPS,
    LANE_STRIDE,
    LANE_WIDTH,
    LANE_WORDS,
)


@triton.jit(do_not_specialize=["first", "num_lanes", "num_slots", "dense_stride", "present_stride", "num_rows"])
def lanes_kernel(
    first,
    num_lanes,
    lanes,
    steps,
    ints,
    floats,
    pointers,
    num_slots,
    bases,
    dense,
    dense_stride,
    labels,
    ids,
    weights,
    lengths,
    present,
    present_stride,
    counters,
    num_rows,
    CHAINS: tl.constexpr,
    FLOAT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LISTS: tl.constexpr,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Lanes [first, first + num_lanes) x tiles of rows; program p takes tiles p, p + programs, ... of all of them."""
    num_tiles = (num_rows + TILE - 1) // TILE
    item = tl.program_id(0)
    while item < num_lanes * num_tiles:
        lane = lanes + (first + item // num_tiles).to(tl.int64) * LANE_WORDS
        # min() hides that the tile is aligned: knowing it, Triton moves tiles through shared memory for vectors it cannot use
        first_row = tl.minimum((item % num_tiles) * TILE, num_rows)
        row = first_row + tl.arange(0, TILE)
        mask = row < num_rows
        slot = tl.load(lane + LANE_SLOT)
        exists = mask
        index = row
        if LISTS:
            if tl.load(lane + LANE_IS_LIST) != 0:
                length, index = first_elements(
                    tl.load(pointers + 2 * num_slots + slot), first_row, row, mask, TILE, AHEAD
                )
                exists = mask & (length > 0)
        i, f = load_element(tl.load(pointers + slot), tl.load(lane + LANE_DTYPE), index, exists, FLOAT)
        null = (exists == 0) | (null_flags(pointers, num_slots, slot, index, exists) != 0)
        i, f, null = apply_chain(
            tl.load(lane + LANE_CHAIN),
            tl.load(lane + LANE_STEPS),
            i,
            f,
            null,
            row,
            row,
            exists,
            steps,
            ints,
            floats,
            pointers,
            num_slots,
            counters,
            CHAINS,
        )
        if LISTS:
            null = null | (exists == 0)
        store_lane(
            lane,
            i,
            f,
            null,
            row,
            mask,
            pointers,
            num_slots,
            bases,
            dense,
            dense_stride,
            labels,
            ids,
            weights,
            lengths,
            present,
            present_stride,
            num_rows,
            WEIGHTED,
        )
        item += tl.num_programs(0)


@triton.jit
def first_elements(lengths, first, row, mask, TILE: tl.constexpr, AHEAD: tl.constexpr):
    """(length, place of the first element) of each row's list; the rows ahead of the tile are added up here.

    That reads a column's lengths once for each of its tiles, from the L2, and saves a launch of its own.
    """
    address = lengths.to(tl.pointer_type(tl.int32))
    before = tl.zeros([AHEAD], tl.int32)
    begin = 0
    while begin < first:
        at = begin + tl.arange(0, AHEAD)
        before += tl.maximum(tl.load(address + at, mask=at < first, other=0), 0)
        begin += AHEAD
    length = tl.maximum(tl.load(address + row, mask=mask, other=0), 0)
    return length, tl.sum(before, 0) + tl.cumsum(length, 0) - length


@triton.jit
def store_lane(
    lane,
    i,
    f,
    null,
    row,
    mask,
    pointers,
    num_slots,
    bases,
    dense,
    dense_stride,
    labels,
    ids,
    weights,
    lengths,
    present,
    present_stride,
    num_rows,
    WEIGHTED: tl.constexpr,
):
    """Writes a tile of one lane where its table row says."""
    kind = tl.load(lane + LANE_KIND)
    base = tl.load(lane + LANE_BASE)
    if kind == KIND_DENSE:
        tl.store(dense + base + row.to(tl.int64) * dense_stride, f.to(tl.float32), mask=mask)
    elif kind == KIND_LABEL:
        tl.store(labels + row, f.to(tl.float32), mask=mask)
    elif kind == KIND_IDS:
        width = tl.load(lane + LANE_WIDTH)
        base += tl.load(lane + LANE_BASE_PER_ROW) * num_rows
        dynamic = tl.load(lane + LANE_DYNAMIC)
        if dynamic >= 0:
            base += tl.load(bases + dynamic)
        at = base + row.to(tl.int64) * tl.load(lane + LANE_STRIDE)
        there = mask & (width > 0)
        column = tl.load(lane + LANE_PRESENT)
        if column >= 0:
            i = tl.where(null, 0, i)
            if present_stride > 0:
                flag = tl.where(null, 0, 1).to(tl.int8)
                tl.store(present + column + row.to(tl.int64) * present_stride, flag, mask=mask)
        tl.store(ids + at, i.to(ids.dtype.element_ty), mask=there)
        if WEIGHTED:
            tl.store(weights + at, tl.full(at.shape, 1.0, tl.float32), mask=there)
        lengths_row = tl.load(lane + LANE_LENGTHS)
        if lengths_row >= 0:
            tl.store(lengths + lengths_row * num_rows + row, width.to(tl.int32) + tl.zeros_like(row), mask=mask)
    else:
        target = tl.load(pointers + base)
        store_scratch(kind, target, i, f, row, mask)
        if tl.load(lane + LANE_NULLS) != 0:
            flags = tl.load(pointers + num_slots + base).to(tl.pointer_type(tl.int8))
            tl.store(flags + row, null.to(tl.int8), mask=mask)
