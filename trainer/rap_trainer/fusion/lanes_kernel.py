# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""The kernel of lanes: one number a row, a whole chain in registers, any mix of chains in one launch.

A tile takes microseconds of waiting and tenths of them of work, so everything it reads is asked for at once: first its table row with the
addresses of its column, then values, null flags and parameters. The kernel is compiled for the forms of its lanes (type, chain, destination),
so that nothing between is a branch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.apply import apply_steps
from rap_trainer.fusion.ops.elements import load_element, store_scratch
from rap_trainer.fusion.words import (
    KIND_DENSE,
    KIND_IDS,
    KIND_LABEL,
    LANE_ADDRESSES,
    LANE_BASE,
    LANE_BASE_PER_ROW,
    LANE_DYNAMIC,
    LANE_FORM,
    LANE_LENGTHS,
    LANE_PRESENT,
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
    FORMS: tl.constexpr,
    FLOAT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Lanes [first, first + num_lanes) x tiles of rows; program p takes tiles p, p + programs, ... of all of them.

    FORMS: (type, destination, is a list) of each form, CHAINS its chain.
    """
    num_tiles = (num_rows + TILE - 1) // TILE
    item = tl.program_id(0)
    while item < num_lanes * num_tiles:
        number = first + item // num_tiles
        lane = lanes + number.to(tl.int64) * LANE_WORDS
        address = pointers + 3 * num_slots + number * LANE_ADDRESSES
        form = tl.load(lane + LANE_FORM)
        first_step = tl.load(lane + LANE_STEPS)
        base = tl.load(lane + LANE_BASE)
        values = tl.load(address)
        nulls = tl.load(address + 1)
        # min() hides that the tile is aligned: knowing it, Triton moves tiles through shared memory for vectors it cannot use
        first_row = tl.minimum((item % num_tiles) * TILE, num_rows)
        row = first_row + tl.arange(0, TILE)
        mask = row < num_rows
        for known in tl.static_range(len(FORMS)):
            if form == known:
                i, f, null = lane_values(
                    CHAINS, known, FORMS[known][0], FORMS[known][2], address, values, nulls, first_step, first_row,
                    row, mask, steps, ints, floats, pointers, num_slots, counters, FLOAT, TILE, AHEAD,
                )  # fmt: skip
                store_lane(
                    FORMS[known][1], lane, base, i, f, null, row, mask, pointers, num_slots, bases, dense,
                    dense_stride, labels, ids, weights, lengths, present, present_stride, num_rows, WEIGHTED,
                )  # fmt: skip
        item += tl.num_programs(0)


@triton.jit
def lane_values(
    CHAINS: tl.constexpr,
    NUMBER: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_LIST: tl.constexpr,
    address,
    values,
    nulls,
    first_step,
    first_row,
    row,
    mask,
    steps,
    ints,
    floats,
    pointers,
    num_slots,
    counters,
    FLOAT: tl.constexpr,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """(i, f, null) of a tile of one lane after its chain."""
    index = row
    exists = mask
    if IS_LIST:
        length, index = first_elements(tl.load(address + 2), first_row, row, mask, TILE, AHEAD)
        exists = mask & (length > 0)
    i, f = load_element(values, DTYPE, index, exists, FLOAT)
    flags = nulls.to(tl.pointer_type(tl.int8)) + index
    null = (exists == 0) | (tl.load(flags, mask=exists & (nulls != 0), other=0) != 0)
    i, f, null = apply_steps(
        CHAINS, NUMBER, first_step, i, f, null, row, row, exists, steps, ints, floats, pointers, num_slots, counters
    )
    if IS_LIST:
        null = null | (exists == 0)
    return i, f, null


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
    KIND: tl.constexpr,
    lane,
    base,
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
    """Writes a tile of one lane where its table row says; what a lane does not write is masked, not branched around."""
    if KIND == KIND_DENSE:
        tl.store(dense + base + row.to(tl.int64) * dense_stride, f.to(tl.float32), mask=mask)
    elif KIND == KIND_LABEL:
        tl.store(labels + row, f.to(tl.float32), mask=mask)
    elif KIND == KIND_IDS:
        width = tl.load(lane + LANE_WIDTH)
        dynamic = tl.load(lane + LANE_DYNAMIC)
        column = tl.load(lane + LANE_PRESENT)
        lengths_row = tl.load(lane + LANE_LENGTHS)
        base += tl.load(lane + LANE_BASE_PER_ROW) * num_rows + tl.load(bases + dynamic, mask=dynamic >= 0, other=0)
        at = base + row.to(tl.int64) * tl.load(lane + LANE_STRIDE)
        i = tl.where(null & (column >= 0), 0, i)
        tl.store(ids + at, i.to(ids.dtype.element_ty), mask=mask & (width > 0))
        if WEIGHTED:
            tl.store(weights + at, tl.full(at.shape, 1.0, tl.float32), mask=mask & (width > 0))
        flag = tl.where(null, 0, 1).to(tl.int8)
        told = mask & (column >= 0) & (present_stride > 0)
        tl.store(present + column + row.to(tl.int64) * present_stride, flag, mask=told)
        held = width.to(tl.int32) + tl.zeros_like(row)
        tl.store(lengths + lengths_row * num_rows + row, held, mask=mask & (lengths_row >= 0))
    else:
        store_scratch(KIND, tl.load(pointers + base), i, f, row, mask)
        flags = tl.load(pointers + num_slots + base).to(tl.pointer_type(tl.int8))
        tl.store(flags + row, null.to(tl.int8), mask=mask)
