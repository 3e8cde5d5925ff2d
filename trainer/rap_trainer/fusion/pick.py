# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""A selection of a group of rows, element by element, so that long and short lists cost alike.

The group's elements lie one after the other. What remains is packed into `chosen`, and each row learns where its part starts and how many there are. Rows
talk to elements through memory and a barrier of the program, which is one warp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.draw_kernel import sampled
from rap_trainer.fusion.lists import UNLIMITED, rows_with_elements
from rap_trainer.fusion.ops.elements import null_flags
from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64, twang_mix64
from rap_trainer.fusion.warp import owners, ranks, running_max
from rap_trainer.fusion.words import (
    OPERAND_CHOSEN,
    OPERAND_OFFSETS,
    OPERAND_SLOT,
    PROPAGATE,
    SELECTION_HASHES,
    SELECTION_KEEP,
    SELECTION_LIMIT,
    SELECTION_MODE,
    SELECTION_PARTNER,
    SELECTION_RATE,
    SELECTION_SALT,
    SKIP,
)


@triton.jit
def select_elements(
    group,
    memory,
    length,
    offsets,
    starts,
    chosen,
    draws,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """int32 [R]: elements of each row that remain, -1 of a null row. `draws`: (draw or -1, row ids, hashes, drawn, mixed, number of mixed)."""
    selection, first_row, num_rows, capacity = group
    draw, row_ids, hashes, _drawn, _mixed, _num_mixed = draws
    last_row = tl.minimum(first_row + ROWS, num_rows)
    row = first_row + tl.arange(0, ROWS)
    mask = row < num_rows
    mode = tl.load(selection + SELECTION_MODE)
    flags = starts + capacity
    if mode == PROPAGATE:
        tl.store(flags + row, tl.zeros([ROWS], tl.int32), mask=mask)
    if (draw < 0) & (tl.load(selection + SELECTION_RATE) >= 0):
        row_id = tl.load(row_ids + row, mask=mask, other=0)
        row_hash = hash_128_to_64(tl.load(selection + SELECTION_SALT) + tl.zeros_like(row_id), twang_mix64(row_id))
        tl.store(hashes + tl.load(selection + SELECTION_HASHES) + row, row_hash, mask=mask)
    begins = tl.load(selection + OPERAND_OFFSETS)
    LANES: tl.constexpr = TILE if BALLOTS else ROWS
    begin, stop = first_row, last_row
    row_of_lane, begin_of_lane = tl.arange(0, LANES), tl.arange(0, LANES)
    if begins >= 0:
        begin = tl.load(offsets + begins + first_row)
        stop = tl.load(offsets + begins + last_row)
        has = (length > 0).to(tl.int32)
        tl.store(starts + first_row + tl.cumsum(has, 0) - has, row, mask=mask & (length > 0))
        tl.debug_barrier()
        row_of_lane, begin_of_lane = rows_with_elements(offsets + begins, starts, first_row, num_rows, ROWS, LANES)
    tl.debug_barrier()
    rows = (row_of_lane, begin_of_lane, begin, stop)
    if mode == PROPAGATE:
        flag_null_rows(selection, memory, rows, begins >= 0, flags, TILE, BALLOTS)
    taken = tl.minimum(length, tl.minimum(tl.load(selection + SELECTION_KEEP), UNLIMITED).to(tl.int32))
    if tl.load(selection + OPERAND_CHOSEN) >= 0:
        known = tl.max(length, 0) <= draws[5]
        stop = pick(selection, memory, rows, starts, chosen, draws, known, TILE, POSITIONS, BALLOTS)
        taken = taken_of(starts, row, mask, length, last_row, stop)
    null = length < 0
    if mode == PROPAGATE:
        tl.debug_barrier()
        null = null | (tl.load(flags + row, mask=mask, other=0) != 0)
    return tl.where(null, -1, taken)


@triton.jit
def taken_of(starts, row, mask, length, last_row, stop):
    """int32 [R]: elements of each row that remain, up to where the next row's begin; rows without any get that place too."""
    tl.debug_barrier()
    start = tl.load(starts + row, mask=length > 0, other=stop)
    following = tl.associative_scan(start, 0, smaller, reverse=True)
    tl.store(starts + row, following, mask=mask)
    tl.debug_barrier()
    ends = tl.load(starts + row + 1, mask=row + 1 < last_row, other=stop)
    return tl.where(length > 0, ends - following, 0)


@triton.jit
def null_elements(selection, element, exists, memory):
    """int8: 1 where an element or its partner is null."""
    pointers, num_slots = memory
    null = null_flags(pointers, num_slots, tl.load(selection + OPERAND_SLOT), element, exists)
    partner = tl.load(selection + SELECTION_PARTNER)
    if partner >= 0:
        null |= null_flags(pointers, num_slots, partner, element, exists)
    return null


@triton.jit
def flag_null_rows(selection, memory, rows, is_list, flags, TILE: tl.constexpr, BALLOTS: tl.constexpr):
    """Flags the rows of null elements; a tile without any is done after reading its null flags. `rows` as for `pick`; numbers are rows of one."""
    row_of_lane, begin_of_lane, at, end = rows
    while at < end:
        element = at + tl.arange(0, TILE)
        exists = element < end
        null = null_elements(selection, element, exists, memory)
        if tl.max(null.to(tl.int32), 0) != 0:
            row = element
            if is_list:
                row, _begin = owners(begin_of_lane, row_of_lane, begin_of_lane, at, TILE, BALLOTS)
            tl.store(flags + row, tl.full([TILE], 1, tl.int32), mask=exists & (null != 0))
        at += TILE


@triton.jit
def pick(
    selection,
    memory,
    rows,
    starts,
    chosen,
    draws,
    known,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Packs the places of a group's remaining elements; the end of the last row's. `rows`: (row and begin of `owners`, first element, one past the last)."""
    row_of_lane, begin_of_lane, at, end = rows
    draw, _row_ids, hashes, drawn, mixed, _num_mixed = draws
    mode = tl.load(selection + SELECTION_MODE)
    rate = tl.load(selection + SELECTION_RATE)
    limit = tl.minimum(tl.load(selection + SELECTION_LIMIT), UNLIMITED).to(tl.int32)
    most = tl.load(selection + SELECTION_KEEP)
    picks = chosen + tl.load(selection + OPERAND_CHOSEN)
    hashes += tl.load(selection + SELECTION_HASHES)
    num_stay, stay_ahead = tl.zeros([TILE], tl.int32), 0
    start_ahead = at
    num_kept = tl.zeros([TILE], tl.int32) + at
    while at < end:
        element = at + tl.arange(0, TILE)
        exists = element < end
        row, first = owners(begin_of_lane, row_of_lane, begin_of_lane, at, TILE, BALLOTS)
        position = element - first
        is_first = exists & (position == 0)
        keep = exists.to(tl.int32)
        if mode == SKIP:
            keep = (exists & (null_elements(selection, element, exists, memory) == 0)).to(tl.int32)
            position, num_stay, stay_ahead = ranked(keep, num_stay, stay_ahead, is_first, BALLOTS)
        if rate >= 0:
            takes = exists
            if draw >= 0:
                bits = tl.load(drawn + row * (POSITIONS // 32) + (position >> 5), mask=exists, other=0)
                takes = ((bits >> (position & 31)) & 1) != 0
            else:
                row_hash = tl.load(hashes + row, mask=exists, other=0)
                takes = sampled(row_hash, mixed_of(position, known, mixed, exists), rate)
            keep = tl.where(takes & (position < limit), keep, 0)
        if most < UNLIMITED:
            keep = first_of_row(keep, most, position, is_first, exists, start_ahead - num_kept, BALLOTS)
        before, number = ranks(keep, BALLOTS)
        before += num_kept
        tl.store(picks + before, element, mask=keep != 0)
        tl.store(starts + row, before, mask=is_first)
        if most < UNLIMITED:
            start_ahead = tl.maximum(start_ahead, tl.max(tl.where(is_first, before, 0), 0))
        num_kept += number
        at += TILE
    return tl.max(num_kept, 0)


@triton.jit
def first_of_row(keep, most, position, is_first, exists, ahead, BALLOTS: tl.constexpr):
    """Flags of the first `most` kept elements of each row; `ahead`: where the row that is open began, from the kept ones ahead of the tile."""
    if tl.max(tl.where(exists, position, 0), 0) >= most:  # else no row has so many
        drawn, _number = ranks(keep, BALLOTS)
        at_begin = running_max(tl.where(is_first, drawn, ahead), ahead)
        keep = tl.where(drawn - at_begin < most, keep, 0)
    return keep


@triton.jit
def smaller(a, b):
    """The smaller of two numbers."""
    return tl.minimum(a, b)


@triton.jit
def ranked(flags, before, ahead, is_first, BALLOTS: tl.constexpr):
    """(how many flagged elements of its row come before each, how many there are so far in the group, where the last row began).

    The count at which a row begins grows from row to row, so the largest so far is that of the element's row.
    """
    earlier, number = ranks(flags, BALLOTS)
    count = before + earlier
    at_begin = running_max(tl.where(is_first, count, 0), ahead)
    return count - at_begin, before + number, tl.max(at_begin, 0)


@triton.jit
def mixed_of(position, known, mixed, exists):
    """twang_mix64 of positions, which are `known` if the table holds those of all."""
    word = tl.zeros(position.shape, tl.int64)
    if known:
        word = tl.load(mixed + position, mask=exists, other=0)
    else:
        word = twang_mix64(position.to(tl.int64))
    return word
