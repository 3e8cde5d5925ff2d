# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Lists of what a selection picked: element e of a group of rows is its e-th pick, so that no element looks for its row.

The twin of `values_kernel` for stages that keep the positions of what their selection packed: one read, a whole chain
in registers, one write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.apply import apply_chain
from rap_trainer.fusion.values_kernel import load_operand, store_elements
from rap_trainer.fusion.warp import owners
from rap_trainer.fusion.words import (
    LIST_BY_ROW,
    LIST_CAPACITY,
    LIST_CHAINS,
    LIST_DRAW,
    LIST_OFFSETS,
    LIST_POST,
    LIST_PRE,
    LIST_WORDS,
    OPERAND_CHOSEN,
    OPERAND_OFFSETS,
    OPERAND_STARTS,
)


@triton.jit(do_not_specialize=["first", "num_stages", "num_slots", "num_rows", "capacity", "num_ids"])
def picked_kernel(
    entries,
    first,
    num_stages,
    steps,
    ints,
    floats,
    pointers,
    num_slots,
    counts,
    offsets,
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
    WEIGHTED: tl.constexpr,
    FLOAT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POSITIONS: tl.constexpr,
    BALLOTS: tl.constexpr,
):
    """Stages [first, first + num_stages) x the groups of ROWS rows that their selections packed.

    Picks of a group are found by row if the selection said so: then its `starts` hold the rows that have any, and `places`, of `draw_kernel`, tells which
    elements of a row are drawn. `capacity`: rows of each draw there, and of each part of `counts`. BALLOTS: of `warp`.
    """
    memory = (steps, ints, floats, pointers, num_slots, counters)
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < num_stages * groups:
        entry = entries + (first + item // groups) * LIST_WORDS
        first_row = (item % groups) * ROWS
        own = offsets + tl.load(entry + LIST_OFFSETS)
        at = tl.load(own + first_row)
        end = tl.load(own + tl.minimum(first_row + ROWS, num_rows)).to(tl.int64)
        end = tl.minimum(end, tl.load(entry + LIST_CAPACITY)).to(tl.int32)
        picks = chosen + tl.load(entry + OPERAND_CHOSEN) - at
        sources = offsets + tl.load(entry + OPERAND_OFFSETS)
        picks += tl.load(sources + first_row)
        draw = tl.load(entry + LIST_DRAW)
        by_row = tl.load(entry + LIST_BY_ROW) != 0
        filled = counts + tl.load(entry + OPERAND_STARTS)
        lane = tl.arange(0, TILE if BALLOTS else ROWS) % ROWS
        begins, place, origin = lane, lane, lane
        if by_row:
            by_row = tl.load(filled + capacity + first_row) != 0
            begins, place, origin = ranges(own, sources, filled, first_row, lane, num_rows, ROWS, POSITIONS)
            origin = tl.where(draw < 0, origin - begins, origin)
        own_places = places + draw * capacity * POSITIONS
        ahead = tl.zeros([TILE], tl.int32)
        while at < end:
            element = at + tl.arange(0, TILE)
            mask = element < end
            if by_row:
                drawn, source, ahead = owners(begins, place, origin, at, ahead, TILE, BALLOTS)
                if draw >= 0:
                    source += tl.load(own_places + (drawn + element), mask=mask, other=0).to(tl.int32)
                else:
                    source += element
            else:
                source = tl.load(picks + element, mask=mask, other=0)
            i, f, null, weight = load_operand(entry, element, source, mask, memory, counts, 0, entry, WEIGHTED, FLOAT)
            for part in tl.static_range(2):
                chain = tl.load(entry + LIST_CHAINS + part)
                begin = tl.load(entry + (LIST_PRE if part == 0 else LIST_POST))
                i, f, null = apply_chain(chain, begin, (i, f, null), element, element, mask, memory, CHAINS)
            store_elements(entry, i, f, weight, element, mask, pointers, (bases, ids, weights, num_ids), WEIGHTED)
            at += TILE
        item += tl.num_programs(0)


@triton.jit
def ranges(own, sources, filled, first_row, lane, num_rows, ROWS: tl.constexpr, POSITIONS: tl.constexpr):
    """Of each row of a group that has elements, one after the other: where they begin, what leads from there to the row's `places`, where its list begins.

    `own`, `sources`: where elements and lists of all rows begin; `filled`: the group's rows that have elements.
    """
    row = first_row + lane
    mask = row < num_rows
    begins = tl.load(own + row, mask=mask, other=0)
    has = (tl.load(own + row + 1, mask=mask, other=0) > begins) & (tl.arange(0, lane.shape[0]) < ROWS)
    exists = lane < tl.sum(has.to(tl.int32), 0)
    row = tl.load(filled + row, mask=exists, other=0)
    begins = tl.load(own + row, mask=exists, other=2**31 - 1)
    return begins, row * POSITIONS - begins, tl.load(sources + row, mask=exists, other=0)
