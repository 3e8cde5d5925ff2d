# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Second pass over lists: every element of every result, one read, a whole chain in registers, one write.

A program takes the elements of a group of rows, one after the other, or every so many of their tiles where lists may be long; no element is counted on the
host. Where an element comes from: the same place; the next one that the selection picked; or by its row, which the lanes of a warp find together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import rows_with_elements
from rap_trainer.fusion.operands import STRUCTURES_AT, load_source, source_of, stepped, store_elements, target_of
from rap_trainer.fusion.ops.codes import holds
from rap_trainer.fusion.restructure import restructured
from rap_trainer.fusion.warp import owners
from rap_trainer.fusion.words import (
    CARTESIAN,
    LIST_BY_ROW,
    LIST_CAPACITY,
    LIST_DRAW,
    LIST_FILLED,
    LIST_KEEPS,
    LIST_OFFSETS,
    LIST_OTHER,
    LIST_WORDS,
    OPERAND_CHOSEN,
    OPERAND_OFFSETS,
    OPERAND_STARTS,
)


@triton.jit(do_not_specialize=["first", "num_stages", "pieces", "num_slots", "num_rows", "capacity", "num_ids"])
def values_kernel(
    entries,
    first,
    num_stages,
    pieces,
    steps,
    ints,
    floats,
    pointers,
    num_slots,
    counts,
    offsets,
    filled,
    chosen,
    places,
    bases,
    ids,
    weights,
    counters,
    num_rows,
    capacity,
    num_ids,
    CHAINS: tl.constexpr,
    FORM: tl.constexpr,
    PICKED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Stages [first, first + num_stages) x groups of ROWS rows x `pieces` of a group. FORM: of `operands`; BALLOTS: of `warp`.

    PICKED: picks of a group are found by row if its selection said so; `places`, of `draw_kernel`, tells which elements of a row are drawn. `capacity`: rows of
    each draw there, and of each part of `counts`.
    """
    memory = (steps, ints, floats, pointers, num_slots, counters)
    lists = (offsets, filled, counts, chosen, places)
    outputs = (ids, weights, num_ids)
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < num_stages * groups * pieces:
        entry = entries + (first + item // (groups * pieces)) * LIST_WORDS
        first_row = (item // pieces % groups) * ROWS
        own = offsets + tl.load(entry + LIST_OFFSETS)
        begin = tl.load(own + first_row)
        end = tl.load(own + tl.minimum(first_row + ROWS, num_rows)).to(tl.int64)
        end = tl.minimum(end, tl.load(entry + LIST_CAPACITY)).to(tl.int32)
        ends = (source_of(entry, memory, FORM), target_of(entry, memory, bases, FORM))
        rows = (own, begin, end, first_row, num_rows, capacity, item % pieces, pieces)
        if PICKED:
            picked_elements(entry, rows, ends, memory, lists, outputs, CHAINS, FORM, ROWS, TILE, POSITIONS, BALLOTS)
        else:
            elements(entry, rows, ends, memory, lists, outputs, CHAINS, FORM, ROWS, TILE, BALLOTS)
        item += tl.num_programs(0)


@triton.jit
def picked_elements(
    entry,
    rows,
    ends,
    memory,
    lists,
    outputs,
    CHAINS: tl.constexpr,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Of a group of rows: what its selection picked. `rows` and `lists` as the kernel makes them."""
    own, begin, end, first_row, num_rows, capacity, piece, pieces = rows
    read, target = ends
    offsets, filled, counts, chosen, places = lists
    sources = offsets + tl.load(entry + OPERAND_OFFSETS)
    picks = chosen + tl.load(entry + OPERAND_CHOSEN) - begin + tl.load(sources + first_row)
    draw = tl.load(entry + LIST_DRAW)
    places += draw * capacity * POSITIONS
    by_row = tl.load(entry + LIST_BY_ROW) != 0
    LANES: tl.constexpr = TILE if BALLOTS else ROWS
    begins, place, origin = tl.arange(0, LANES), tl.arange(0, LANES), tl.arange(0, LANES)
    if by_row:
        by_row = tl.load(counts + tl.load(entry + OPERAND_STARTS) + capacity + first_row) != 0
        row, begins = rows_with_elements(own, filled + tl.load(entry + LIST_FILLED), first_row, num_rows, ROWS, LANES)
        place = row * POSITIONS - begins
        origin = tl.load(sources + row) - tl.where(draw < 0, begins, 0)
    at = begin + piece * TILE
    while at < end:
        element = at + tl.arange(0, TILE)
        mask = element < end
        source = element
        if by_row:
            place_ahead, ahead = owners(begins, place, origin, at, TILE, BALLOTS)
            if draw >= 0:
                source = tl.load(places + (place_ahead + element), mask=mask, other=0).to(tl.int32)
            source += ahead
        else:
            source = tl.load(picks + element, mask=mask, other=0)
        i, f, null, weight = load_source(read, element, source, mask, memory, counts, entry, FORM)
        values = stepped(entry, 0, (i, f, null), element, element, mask, memory, CHAINS)
        i, f, null = stepped(entry, 1, values, element, element, mask, memory, CHAINS)
        store_elements(target, i, f, weight, element, mask, outputs, FORM)
        at += pieces * TILE


@triton.jit
def elements(
    entry,
    rows,
    ends,
    memory,
    lists,
    outputs,
    CHAINS: tl.constexpr,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Of a group of rows: elements that come from the same place, or by their rows. `rows` and `lists` as the kernel makes them."""
    own, begin, end, first_row, num_rows, _capacity, piece, pieces = rows
    read, target = ends
    other = read
    if holds(FORM[STRUCTURES_AT], CARTESIAN):
        other = source_of(entry + LIST_OTHER, memory, FORM)
    offsets, filled, counts, chosen, _places = lists
    keeps = tl.load(entry + LIST_KEEPS) != 0
    LANES: tl.constexpr = TILE if BALLOTS else ROWS
    row_of_lane, begins = tl.arange(0, LANES), tl.arange(0, LANES)
    if keeps == 0:
        notes = filled + tl.load(entry + LIST_FILLED)
        row_of_lane, begins = rows_with_elements(own, notes, first_row, num_rows, ROWS, LANES)
    at = begin + piece * TILE
    while at < end:
        element = at + tl.arange(0, TILE)
        mask = element < end
        row, position = element, element
        if keeps == 0:
            row, place = owners(begins, row_of_lane, begins, at, TILE, BALLOTS)
            position = element - place
        i, f, weight = restructured(
            entry, (read, other), keeps, row, position, element, mask, memory, (offsets, counts, chosen), CHAINS, FORM
        )
        store_elements(target, i, f, weight, element, mask, outputs, FORM)
        at += pieces * TILE
