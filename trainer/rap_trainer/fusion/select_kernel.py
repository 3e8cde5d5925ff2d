# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Which elements of lists remain: nulls collapsed, a sample drawn, the first so many kept. Runs over elements, so that long and short lists cost alike.

A program of one warp takes a group of rows; their elements lie one after the other. What remains is packed per group
into `chosen`, and each row learns where its part starts and how many there are. Rows talk to elements through memory and
a barrier of the program. A draw that selections share has been made before (`draw_kernel`).

Where the only nulls of a group are lists of one null, and no sample is drawn but a shared one, a row's picks follow from the row: they are counted,
and found by whoever reads them. BY_ROW, the group's flag says so; BY_PLACE, its starts hold -1 - where the list begins.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.bits import first_bits, num_bits
from rap_trainer.fusion.draw_kernel import sampled
from rap_trainer.fusion.lists import raw_length, rows_with_elements
from rap_trainer.fusion.ops.elements import null_flags
from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64, twang_mix64
from rap_trainer.fusion.warp import lasts, owners, ranks, running_max
from rap_trainer.fusion.words import (
    BY_PLACE,
    BY_ROW,
    OPERAND_CHOSEN,
    OPERAND_COUNTS,
    OPERAND_OFFSETS,
    OPERAND_SLOT,
    OPERAND_STARTS,
    PROPAGATE,
    SELECTION_DRAW,
    SELECTION_FILLED,
    SELECTION_FOUND,
    SELECTION_HASHES,
    SELECTION_KEEP,
    SELECTION_LIMIT,
    SELECTION_MODE,
    SELECTION_PARTNER,
    SELECTION_RATE,
    SELECTION_SALT,
    SELECTION_WORDS,
    SKIP,
    WRITTEN,
)

UNLIMITED = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_mixed", "num_rows", "capacity"])
def select_kernel(
    first,
    end,
    selections,
    pointers,
    num_slots,
    offsets,
    filled,
    counts,
    chosen,
    hashes,
    drawn,
    mixed,
    num_mixed,
    row_ids,
    num_rows,
    capacity,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Selections [first, end) x groups of ROWS rows. `capacity`: rows of each part of `counts`, and of each draw.

    `counts` has three parts a selection: counts, starts, flags of null rows. `mixed`: twang_mix64 of the positions
    0..num_mixed - 1. BALLOTS: of `warp`.
    """
    lists = (offsets, filled, counts, chosen, hashes, drawn)
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < (end - first) * groups:
        selection = selections + (first + item // groups) * SELECTION_WORDS
        first_row = (item % groups) * ROWS
        select_rows(
            selection,
            first_row,
            num_rows,
            capacity,
            row_ids,
            pointers,
            num_slots,
            lists,
            mixed,
            num_mixed,
            ROWS,
            TILE,
            POSITIONS,
            BALLOTS,
        )
        item += tl.num_programs(0)


@triton.jit
def select_rows(
    selection,
    first_row,
    num_rows,
    capacity,
    row_ids,
    pointers,
    num_slots,
    lists,
    mixed,
    num_mixed,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """What remains of a group of rows. `lists`: (offsets, filled, counts, chosen, hashes, drawn)."""
    offsets, filled, counts, chosen, hashes, drawn = lists
    row = first_row + tl.arange(0, ROWS)
    mask = row < num_rows
    length = raw_length(selection, row, mask, pointers, num_slots)
    draw = tl.load(selection + SELECTION_DRAW)
    draw = tl.where(tl.max(length, 0) <= POSITIONS, draw, -1)
    drawn += draw * capacity * (POSITIONS // 32)
    starts = counts + tl.load(selection + OPERAND_STARTS)
    own = offsets + tl.load(selection + OPERAND_OFFSETS)
    found = tl.load(selection + SELECTION_FOUND)
    follows, taken = found != WRITTEN, length
    if follows:
        taken, follows = without_nulls(selection, first_row, length, own, num_rows, pointers, num_slots, ROWS, 2 * TILE)
        follows &= (draw >= 0) | (tl.load(selection + SELECTION_RATE) < 0)
        if found == BY_ROW:
            tl.store(starts + capacity + first_row, follows.to(tl.int32))
    if follows:
        taken = count_picks(selection, row, mask, taken, draw, drawn, POSITIONS)
        if found == BY_PLACE:
            tl.store(starts + row, -1 - tl.load(own + row, mask=mask, other=0), mask=mask)
    else:
        where = (offsets, filled, chosen, hashes, drawn)
        taken = select_elements(
            selection,
            first_row,
            num_rows,
            capacity,
            length,
            draw,
            row_ids,
            pointers,
            num_slots,
            where,
            starts,
            mixed,
            num_mixed,
            ROWS,
            TILE,
            POSITIONS,
            BALLOTS,
        )
    tl.store(counts + tl.load(selection + OPERAND_COUNTS) + row, taken, mask=mask)


@triton.jit
def without_nulls(
    selection, first_row, length, own, num_rows, pointers, num_slots, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """(int32 [R]: elements of each row that are not null, whether it is so: no null is beside others in a list). A null row keeps -1."""
    held = length
    told = tl.load(selection + SELECTION_MODE) != SKIP
    if told == 0:
        row = first_row + tl.arange(0, ROWS)
        single = (length == 1) & (row < num_rows)
        place = tl.load(own + row, mask=single, other=0)
        empty = (null_elements(selection, place, single, pointers, num_slots) != 0).to(tl.int32)
        nulls = tl.zeros([TILE], tl.int32)
        at = tl.load(own + first_row)
        end = tl.load(own + tl.minimum(first_row + ROWS, num_rows))
        while at < end:
            element = at + tl.arange(0, TILE)
            nulls += (null_elements(selection, element, element < end, pointers, num_slots) != 0).to(tl.int32)
            at += TILE
        held = length - empty
        told = tl.sum(nulls, 0) == tl.sum(empty, 0)
    return held, told


@triton.jit
def count_picks(selection, row, mask, held, draw, drawn, POSITIONS: tl.constexpr):
    """int32 [R]: how many of so many elements of each row are picked, -1 of a null row."""
    number = held
    if draw >= 0:
        limit = tl.minimum(tl.load(selection + SELECTION_LIMIT), UNLIMITED).to(tl.int32)
        reached = tl.minimum(held, limit)
        number = tl.zeros(row.shape, tl.int32)
        for word in tl.static_range(POSITIONS // 32):
            bits = tl.load(drawn + row * (POSITIONS // 32) + word, mask=mask, other=0)
            number += num_bits(bits & first_bits(reached - 32 * word))
    number = tl.minimum(number, tl.minimum(tl.load(selection + SELECTION_KEEP), UNLIMITED).to(tl.int32))
    return tl.where(held < 0, -1, number)


@triton.jit
def select_elements(
    selection,
    first_row,
    num_rows,
    capacity,
    length,
    draw,
    row_ids,
    pointers,
    num_slots,
    where,
    starts,
    mixed,
    num_mixed,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """int32 [R]: elements of each row that remain, -1 of a null row, element by element. `where`: (offsets, filled, chosen, hashes, drawn)."""
    offsets, filled, chosen, hashes, drawn = where
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
    tl.debug_barrier()
    begin, stop = first_row, last_row
    begins = tl.load(selection + OPERAND_OFFSETS)
    if begins >= 0:
        begin = tl.load(offsets + begins + first_row)
        stop = tl.load(offsets + begins + last_row)
    if mode == PROPAGATE:
        lists = (offsets, filled)
        flag_null_rows(
            selection, first_row, num_rows, begin, stop, pointers, num_slots, lists, flags, ROWS, TILE, BALLOTS
        )
    taken = tl.minimum(length, tl.minimum(tl.load(selection + SELECTION_KEEP), UNLIMITED).to(tl.int32))
    if tl.load(selection + OPERAND_CHOSEN) >= 0:
        where = (offsets, chosen, starts, hashes, drawn)
        stop = pick(
            selection,
            first_row,
            begin,
            stop,
            length,
            draw,
            pointers,
            num_slots,
            where,
            mixed,
            num_mixed,
            ROWS,
            TILE,
            POSITIONS,
            BALLOTS,
        )
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
def null_elements(selection, element, exists, pointers, num_slots):
    """int8: 1 where an element or its partner is null."""
    null = null_flags(pointers, num_slots, tl.load(selection + OPERAND_SLOT), element, exists)
    partner = tl.load(selection + SELECTION_PARTNER)
    if partner >= 0:
        null |= null_flags(pointers, num_slots, partner, element, exists)
    return null


@triton.jit
def flag_null_rows(
    selection,
    first_row,
    num_rows,
    begin,
    end,
    pointers,
    num_slots,
    lists,
    flags,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Flags the rows of null elements; a tile without any is done after reading its null flags. `lists`: (offsets, filled)."""
    offsets, filled = lists
    own = tl.load(selection + OPERAND_OFFSETS)
    is_list = own >= 0
    LANES: tl.constexpr = TILE if BALLOTS else ROWS
    row, begins = tl.arange(0, LANES), tl.arange(0, LANES)
    if is_list:
        notes = filled + tl.load(selection + SELECTION_FILLED)
        row, begins = rows_with_elements(offsets + own, notes, first_row, num_rows, ROWS, LANES)
    at = begin
    while at < end:
        element = at + tl.arange(0, TILE)
        exists = element < end
        null = null_elements(selection, element, exists, pointers, num_slots)
        if tl.max(null.to(tl.int32), 0) != 0:
            of = element
            if is_list:
                of, _begin = owners(begins, row, begins, at, TILE, BALLOTS)
            tl.store(flags + of, tl.full([TILE], 1, tl.int32), mask=exists & (null != 0))
        at += TILE


@triton.jit
def pick(
    selection,
    first_row,
    begin,
    end,
    length,
    draw,
    pointers,
    num_slots,
    where,
    mixed,
    num_mixed,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Packs the places of a group's remaining elements; the end of the last row's. `where`: (offsets, chosen, starts, hashes, drawn)."""
    offsets, chosen, starts, hashes, drawn = where
    known = tl.max(length, 0) <= num_mixed
    mode = tl.load(selection + SELECTION_MODE)
    rate = tl.load(selection + SELECTION_RATE)
    limit = tl.minimum(tl.load(selection + SELECTION_LIMIT), UNLIMITED).to(tl.int32)
    most = tl.load(selection + SELECTION_KEEP)
    own = offsets + tl.load(selection + OPERAND_OFFSETS) + first_row
    picks = chosen + tl.load(selection + OPERAND_CHOSEN)
    hashes_of_rows = hashes + tl.load(selection + SELECTION_HASHES) + first_row
    drawn += first_row * (POSITIONS // 32)
    starts += first_row
    mark_rows(own, length, begin, end, picks, ROWS, TILE)
    mark_ahead = tl.zeros([TILE], tl.int32)
    num_stay, stay_ahead = tl.zeros([TILE], tl.int32), 0
    start_ahead = begin
    num_kept = tl.zeros([TILE], tl.int32) + begin
    at = begin
    while at < end:
        element = at + tl.arange(0, TILE)
        exists = element < end
        null = tl.zeros([TILE], tl.int8)
        if mode == SKIP:  # asked for with the marks
            null = null_elements(selection, element, exists, pointers, num_slots)
        mark, mark_ahead = lasts(tl.load(picks + element, mask=exists, other=0), mark_ahead, BALLOTS)
        row = mark - 1
        position = element - tl.load(own + row, mask=exists, other=0)
        is_first = exists & (position == 0)
        keep = exists.to(tl.int32)
        if mode == SKIP:
            keep = (exists & (null == 0)).to(tl.int32)
            position, num_stay, stay_ahead = ranked(keep, num_stay, stay_ahead, is_first, BALLOTS)
        if rate >= 0:
            takes = exists
            if draw >= 0:
                bits = tl.load(drawn + row * (POSITIONS // 32) + (position >> 5), mask=exists, other=0)
                takes = ((bits >> (position & 31)) & 1) != 0
            else:
                row_hash = tl.load(hashes_of_rows + row, mask=exists, other=0)
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
def mark_rows(own, length, begin, end, marks, ROWS: tl.constexpr, TILE: tl.constexpr):
    """The place of each first element of a row gets the row's number in its group and 1, all others 0.

    `marks` is where the picks will lie: no pick is written before its tile has read its marks.
    """
    at = begin
    while at < end:
        element = at + tl.arange(0, TILE)
        tl.store(marks + element, tl.zeros([TILE], tl.int32), mask=element < end)
        at += TILE
    tl.debug_barrier()
    row = tl.arange(0, ROWS)
    first = tl.load(own + row, mask=length > 0, other=0)
    tl.store(marks + first, row + 1, mask=length > 0)
    tl.debug_barrier()


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
