# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Which elements of lists remain: nulls collapsed, a sample drawn, the first so many kept.

A program of one warp takes a group of rows. Where the only nulls of a group are lists of one null, and no sample is drawn but a shared one (`draw_kernel`), a
row's picks follow from the row: they are counted, and found by whoever reads them. BY_ROW, the group's flag says so; BY_PLACE, its starts hold -1 - where
the list begins. Else the elements are gone through (`pick`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.bits import first_bits, num_bits
from rap_trainer.fusion.lists import UNLIMITED, raw_length
from rap_trainer.fusion.pick import null_elements, select_elements
from rap_trainer.fusion.words import (
    BY_PLACE,
    BY_ROW,
    OPERAND_COUNTS,
    OPERAND_OFFSETS,
    OPERAND_STARTS,
    SELECTION_DRAW,
    SELECTION_FOUND,
    SELECTION_KEEP,
    SELECTION_LIMIT,
    SELECTION_MODE,
    SELECTION_RATE,
    SELECTION_WORDS,
    SKIP,
    WRITTEN,
)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_mixed", "num_rows", "capacity"])
def select_kernel(
    first,
    end,
    selections,
    pointers,
    num_slots,
    offsets,
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
    memory = (pointers, num_slots)
    lists = (offsets, counts, chosen)
    draws = (row_ids, hashes, drawn, mixed, num_mixed)
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < (end - first) * groups:
        selection = selections + (first + item // groups) * SELECTION_WORDS
        group = (selection, (item % groups) * ROWS, num_rows, capacity)
        select_rows(group, memory, lists, draws, ROWS, TILE, POSITIONS, BALLOTS)
        item += tl.num_programs(0)


@triton.jit
def select_rows(
    group,
    memory,
    lists,
    draws,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """What remains of a group of rows. `group`: (selection, first row, rows, capacity); the others as the kernel makes them."""
    selection, first_row, num_rows, capacity = group
    offsets, counts, chosen = lists
    row_ids, hashes, drawn, mixed, num_mixed = draws
    row = first_row + tl.arange(0, ROWS)
    mask = row < num_rows
    length = raw_length(selection, row, mask, memory[0], memory[1])
    draw = tl.load(selection + SELECTION_DRAW)
    draw = tl.where(tl.max(length, 0) <= POSITIONS, draw, -1)
    drawn += draw * capacity * (POSITIONS // 32)
    starts = counts + tl.load(selection + OPERAND_STARTS)
    own = offsets + tl.load(selection + OPERAND_OFFSETS)
    found = tl.load(selection + SELECTION_FOUND)
    follows, taken = found != WRITTEN, length
    if follows:
        taken, follows = without_nulls(group, memory, length, own, ROWS, 2 * TILE)
        follows &= (draw >= 0) | (tl.load(selection + SELECTION_RATE) < 0)
        if found == BY_ROW:
            tl.store(starts + capacity + first_row, follows.to(tl.int32))
    if follows:
        taken = count_picks(selection, row, mask, taken, draw, drawn, POSITIONS)
        if found == BY_PLACE:
            tl.store(starts + row, -1 - tl.load(own + row, mask=mask, other=0), mask=mask)
    else:
        drawing = (draw, row_ids, hashes, drawn, mixed, num_mixed)
        taken = select_elements(group, memory, length, offsets, starts, chosen, drawing, ROWS, TILE, POSITIONS, BALLOTS)
    tl.store(counts + tl.load(selection + OPERAND_COUNTS) + row, taken, mask=mask)


@triton.jit
def without_nulls(group, memory, length, own, ROWS: tl.constexpr, TILE: tl.constexpr):
    """(int32 [R]: elements of each row that are not null, whether it is so: no null is beside others in a list). A null row keeps -1."""
    selection, first_row, num_rows, _capacity = group
    held = length
    told = tl.load(selection + SELECTION_MODE) != SKIP
    if told == 0:
        row = first_row + tl.arange(0, ROWS)
        single = (length == 1) & (row < num_rows)
        place = tl.load(own + row, mask=single, other=0)
        empty = (null_elements(selection, place, single, memory) != 0).to(tl.int32)
        nulls = tl.zeros([TILE], tl.int32)
        at = tl.load(own + first_row)
        end = tl.load(own + tl.minimum(first_row + ROWS, num_rows))
        while at < end:
            element = at + tl.arange(0, TILE)
            nulls += (null_elements(selection, element, element < end, memory) != 0).to(tl.int32)
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
