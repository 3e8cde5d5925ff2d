# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""The kernel of lanes: one number a row, a whole chain in registers, any mix of chains in one launch.

A tile takes microseconds of waiting and tenths of them of work, so everything it reads is asked for at once: first its table row with the
addresses of its column, then values, null flags and parameters. The kernel is compiled for the forms of its lanes (type, chain, destination),
so that nothing between is a branch. Neighbouring columns of the dense matrix are made together, as a bundle: a number of four bytes alone
costs the L2 as much as 32 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.apply import apply_steps
from rap_trainer.fusion.ops.elements import load_element, store_scratch
from rap_trainer.fusion.words import (
    BUNDLE_BASE,
    BUNDLE_FORM,
    BUNDLE_LANE,
    BUNDLE_NUMBER,
    BUNDLE_WORDS,
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


@triton.jit(
    do_not_specialize=[
        "first",
        "num_lanes",
        "num_bundles",
        "inverse_tiles",
        "inverse_bundle_tiles",
        "num_slots",
        "dense_stride",
        "present_stride",
        "num_rows",
    ]
)
def lanes_kernel(
    first,
    num_lanes,
    inverse_tiles: tl.int64,
    lanes,
    bundles,
    num_bundles,
    inverse_bundle_tiles: tl.int64,
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
    LENGTHS: tl.constexpr,
    PRESENT: tl.constexpr,
    COLUMNS: tl.constexpr,
    BUNDLE_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Bundles, then lanes [first, first + num_lanes), x tiles of rows; program p takes tiles p, p + programs, ... of all of them.

    FORMS: (type, destination, is a list) of each form, CHAINS its chain. COLUMNS: lanes of a bundle at most. `inverse_...`: of the tiles of a
    lane and of a bundle, for `tile_of`. LENGTHS, PRESENT: whether constant lengths and flags of presence are written.
    """
    memory = (steps, ints, floats, pointers, num_slots, counters)
    outputs = (bases, dense, dense_stride, labels, ids, weights, lengths, present, present_stride)
    num_tiles = (num_rows + TILE - 1) // TILE
    bundle_tiles = (num_rows + BUNDLE_ROWS - 1) // BUNDLE_ROWS
    item = tl.program_id(0)
    while item < num_bundles * bundle_tiles + num_lanes * num_tiles:
        if item < num_bundles * bundle_tiles:
            number, first_row = tile_of(item, bundle_tiles, inverse_bundle_tiles, BUNDLE_ROWS)
            work_on_bundle(
                bundles + number * BUNDLE_WORDS, first_row, num_rows, lanes, memory, dense, dense_stride, CHAINS, FORMS,
                FLOAT, BUNDLE_ROWS, COLUMNS,
            )  # fmt: skip
        else:
            number, first_row = tile_of(item - num_bundles * bundle_tiles, num_tiles, inverse_tiles, TILE)
            work_on_lane(
                first + number, first_row, num_rows, lanes, memory, outputs, CHAINS, FORMS, FLOAT, WEIGHTED, LENGTHS,
                PRESENT, TILE, AHEAD,
            )  # fmt: skip
        item += tl.num_programs(0)


@triton.jit
def tile_of(place, tiles, inverse, ROWS: tl.constexpr):
    """(place // tiles, the first row of tile place % tiles) without a division, of int32 below 2^32 / tiles; `inverse`: floor(2^32 / tiles) + 1."""
    number = ((place.to(tl.int64) * inverse) >> 32).to(tl.int32)
    return number, (place - number * tiles) * ROWS


@triton.jit
def work_on_bundle(
    bundle,
    first_row,
    num_rows,
    lanes,
    memory,
    dense,
    dense_stride,
    CHAINS: tl.constexpr,
    FORMS: tl.constexpr,
    FLOAT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile [ROWS, COLUMNS] of neighbouring columns of the dense matrix: read column by column, written row by row."""
    form = tl.load(bundle + BUNDLE_FORM)
    base = tl.load(bundle + BUNDLE_BASE)
    column = tl.arange(0, COLUMNS)
    there = (column < tl.load(bundle + BUNDLE_NUMBER))[None, :]
    lane = (tl.load(bundle + BUNDLE_LANE) + column)[None, :]
    first_step = tl.load(lanes + lane * LANE_WORDS + LANE_STEPS, mask=there, other=0)
    address = memory[3] + 3 * memory[4] + lane * LANE_ADDRESSES
    values = tl.load(address, mask=there, other=0)
    nulls = tl.load(address + 1, mask=there, other=0)
    row = (first_row + tl.arange(0, ROWS))[:, None]
    mask = (row < num_rows) & there
    index = row + tl.zeros([1, COLUMNS], tl.int32)
    for known in tl.static_range(len(FORMS)):
        if FORMS[known][1] == KIND_DENSE and not FORMS[known][2]:
            if form == known:
                i, f = load_element(values, FORMS[known][0], index, mask, FLOAT)
                flags = nulls.to(tl.pointer_type(tl.int8)) + index
                null = (mask == 0) | (tl.load(flags, mask=mask & (nulls != 0), other=0) != 0)
                i, f, null = apply_steps(CHAINS, known, first_step, (i, f, null), index, index, mask, memory)
                target = dense + base + first_row.to(tl.int64) * dense_stride
                at = tl.arange(0, ROWS)[:, None] * dense_stride + column[None, :]
                tl.store(target + at, f.to(tl.float32), mask=mask)


@triton.jit
def work_on_lane(
    number,
    first_row,
    num_rows,
    lanes,
    memory,
    outputs,
    CHAINS: tl.constexpr,
    FORMS: tl.constexpr,
    FLOAT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LENGTHS: tl.constexpr,
    PRESENT: tl.constexpr,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """A tile of one lane."""
    # min() hides that the tile is aligned: knowing it, Triton moves tiles through shared memory for vectors it cannot use
    first_row = tl.minimum(first_row, num_rows)
    lane = lanes + number.to(tl.int64) * LANE_WORDS
    address = memory[3] + 3 * memory[4] + number * LANE_ADDRESSES
    form = tl.load(lane + LANE_FORM)
    first_step = tl.load(lane + LANE_STEPS)
    base = tl.load(lane + LANE_BASE)
    values = tl.load(address)
    nulls = tl.load(address + 1)
    row = first_row + tl.arange(0, TILE)
    mask = row < num_rows
    for known in tl.static_range(len(FORMS)):
        if form == known:
            i, f, null = lane_values(
                CHAINS, known, FORMS[known][0], FORMS[known][2], address, values, nulls, first_step, first_row, row,
                mask, memory, FLOAT, TILE, AHEAD,
            )  # fmt: skip
            if FORMS[known][1] == KIND_IDS:
                store_ids(lane, base, i, null, row, mask, num_rows, outputs, WEIGHTED, LENGTHS, PRESENT)
            else:
                store_lane(FORMS[known][1], base, i, f, null, row, mask, memory, outputs)


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
    memory,
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
    i, f, null = apply_steps(CHAINS, NUMBER, first_step, (i, f, null), row, row, exists, memory)
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
def store_lane(KIND: tl.constexpr, base, i, f, null, row, mask, memory, outputs):
    """Writes a tile of one lane that is no ids where its table row says."""
    if KIND == KIND_DENSE:
        tl.store(outputs[1] + base + row.to(tl.int64) * outputs[2], f.to(tl.float32), mask=mask)
    elif KIND == KIND_LABEL:
        tl.store(outputs[3] + row, f.to(tl.float32), mask=mask)
    else:
        store_scratch(KIND, tl.load(memory[3] + base), i, f, row, mask)
        flags = tl.load(memory[3] + memory[4] + base).to(tl.pointer_type(tl.int8))
        tl.store(flags + row, null.to(tl.int8), mask=mask)


@triton.jit
def store_ids(
    lane,
    base,
    i,
    null,
    row,
    mask,
    num_rows,
    outputs,
    WEIGHTED: tl.constexpr,
    LENGTHS: tl.constexpr,
    PRESENT: tl.constexpr,
):
    """Writes a tile of ids; what a lane does not write is masked, not branched around. Numbers of ids of a batch fit int32."""
    bases, _dense, _dense_stride, _labels, ids, weights, lengths, present, present_stride = outputs
    width = tl.load(lane + LANE_WIDTH)
    dynamic = tl.load(lane + LANE_DYNAMIC)
    column = tl.load(lane + LANE_PRESENT)
    at = row * tl.load(lane + LANE_STRIDE).to(tl.int32)
    base += tl.load(lane + LANE_BASE_PER_ROW) * num_rows + tl.load(bases + dynamic, mask=dynamic >= 0, other=0)
    i = tl.where(null & (column >= 0), 0, i)
    tl.store(ids + base + at, i.to(ids.dtype.element_ty), mask=mask & (width > 0))
    if WEIGHTED:
        tl.store(weights + base + at, tl.full(at.shape, 1.0, tl.float32), mask=mask & (width > 0))
    if PRESENT:
        flag = tl.where(null, 0, 1).to(tl.int8)
        tl.store(present + column + row * present_stride, flag, mask=mask & (column >= 0))
    if LENGTHS:
        number = tl.load(lane + LANE_LENGTHS)
        held = width.to(tl.int32) + tl.zeros_like(row)
        tl.store(lengths + number * num_rows + row, held, mask=mask & (number >= 0))
