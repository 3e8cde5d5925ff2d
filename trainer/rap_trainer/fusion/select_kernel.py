# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Which elements of lists remain: nulls collapsed, a sample drawn. Runs over elements, so that long and short lists cost alike.

A program takes a group of rows; their elements lie one after the other. What remains is packed per group into
`chosen`, and each row learns where its part starts and how many there are. Rows talk to elements through memory and
a barrier of the program. sample: hash_128_to_64(hash_128_to_64(salt, twang_mix64(row id)), twang_mix64(position)).
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import raw_length, row_of
from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64, twang_mix64
from rap_trainer.fusion.words import (
    OPERAND_CHOSEN,
    OPERAND_COUNTS,
    OPERAND_OFFSETS,
    OPERAND_SLOT,
    OPERAND_STARTS,
    PROPAGATE,
    SELECTION_HASHES,
    SELECTION_LANDMARKS,
    SELECTION_LIMIT,
    SELECTION_MODE,
    SELECTION_PARTNER,
    SELECTION_RATE,
    SELECTION_SALT,
    SELECTION_WORDS,
    SKIP,
)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_rows", "capacity"])
def select_kernel(
    first,
    end,
    selections,
    pointers,
    num_slots,
    offsets,
    landmarks,
    counts,
    chosen,
    hashes,
    row_ids,
    num_rows,
    capacity,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Selections [first, end) x groups of ROWS rows. `capacity`: rows of each part of `counts`.

    `counts` has four parts a selection: counts, starts, ends, and flags of null rows or ranks.
    """
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < (end - first) * groups:
        selection = selections + (first + item // groups) * SELECTION_WORDS
        row = (item % groups) * ROWS + tl.arange(0, ROWS)
        mask = row < num_rows
        part = counts + tl.load(selection + OPERAND_COUNTS)
        starts = counts + tl.load(selection + OPERAND_STARTS)
        zero = tl.zeros([ROWS], tl.int32)
        tl.store(starts + row, zero, mask=mask)
        tl.store(starts + capacity + row, zero, mask=mask)
        tl.store(starts + 2 * capacity + row, zero, mask=mask)
        if tl.load(selection + SELECTION_RATE) >= 0:
            row_id = tl.load(row_ids + row, mask=mask, other=0)
            salt = tl.load(selection + SELECTION_SALT) + tl.zeros_like(row_id)
            row_hash = hash_128_to_64(salt, twang_mix64(row_id))
            tl.store(hashes + tl.load(selection + SELECTION_HASHES) + row, row_hash, mask=mask)
        tl.debug_barrier()
        first_row = (item % groups) * ROWS
        last_row = tl.minimum(first_row + ROWS, num_rows)
        elements(
            selection,
            first_row,
            last_row,
            pointers,
            num_slots,
            offsets,
            landmarks,
            chosen,
            starts,
            hashes,
            capacity,
            TILE,
        )
        tl.debug_barrier()
        source = raw_length(selection, row, mask, pointers, num_slots)
        taken = tl.load(starts + capacity + row, mask=mask, other=0) - tl.load(starts + row, mask=mask, other=0)
        if tl.load(selection + OPERAND_CHOSEN) < 0:
            taken = source
        null = source < 0
        if tl.load(selection + SELECTION_MODE) == PROPAGATE:
            null = null | (tl.load(starts + 2 * capacity + row, mask=mask, other=0) != 0)
        tl.store(part + row, tl.where(null, -1, taken), mask=mask)
        item += tl.num_programs(0)


@triton.jit
def elements(
    selection,
    first_row,
    last_row,
    pointers,
    num_slots,
    offsets,
    landmarks,
    chosen,
    starts,
    hashes,
    capacity,
    TILE: tl.constexpr,
):
    """The elements of a group of rows, a tile at a time."""
    mode = tl.load(selection + SELECTION_MODE)
    partner = tl.load(selection + SELECTION_PARTNER)
    own_nulls = tl.load(pointers + num_slots + tl.load(selection + OPERAND_SLOT))
    other_nulls = tl.load(pointers + num_slots + tl.maximum(partner, 0))
    where_chosen = tl.load(selection + OPERAND_CHOSEN)
    begins = tl.load(selection + OPERAND_OFFSETS)
    begin = first_row
    end = last_row
    if begins >= 0:
        begin = tl.load(offsets + begins + first_row)
        end = tl.load(offsets + begins + last_row)
    num_stay = 0
    num_kept = begin
    at = begin
    while at < end:
        element = at + tl.arange(0, TILE)
        exists = element < end
        null = tl.zeros([TILE], tl.int8)
        if own_nulls != 0:
            null = tl.load(own_nulls.to(tl.pointer_type(tl.int8)) + element, mask=exists, other=0)
        if partner >= 0:
            if other_nulls != 0:
                null |= tl.load(other_nulls.to(tl.pointer_type(tl.int8)) + element, mask=exists, other=0)
        any_null = tl.max(null.to(tl.int32), 0)
        if (where_chosen >= 0) | (any_null != 0):
            row = element
            row_begin = element
            row_end = element + 1
            if begins >= 0:
                own = offsets + begins
                row = row_of(own, landmarks + tl.load(selection + SELECTION_LANDMARKS), element, exists)
                row_begin = tl.load(own + row)
                row_end = tl.load(own + row + 1)
            if mode == PROPAGATE:
                tl.store(starts + 2 * capacity + row, tl.full([TILE], 1, tl.int32), mask=exists & (null != 0))
            if where_chosen >= 0:
                stays = (exists & ((null == 0) | (mode != SKIP))).to(tl.int32)
                keep, num_stay = sampled(
                    selection, stays, element, row, row_begin, exists, num_stay, starts + 2 * capacity, hashes
                )
                before = num_kept + tl.cumsum(keep, 0) - keep
                tl.store(chosen + where_chosen + before, element, mask=keep != 0)
                tl.store(starts + row, before, mask=exists & (element == row_begin))
                tl.store(starts + capacity + row, before + keep, mask=exists & (element + 1 == row_end))
                num_kept += tl.sum(keep, 0)
        at += TILE


@triton.jit
def sampled(selection, stays, element, row, row_begin, exists, num_stay, ranks, hashes):
    """(which of the staying elements are kept, number of staying ones so far)."""
    rate = tl.load(selection + SELECTION_RATE)
    keep = stays
    if rate >= 0:
        position = element - row_begin
        if tl.load(selection + SELECTION_MODE) == SKIP:
            rank = num_stay + tl.cumsum(stays, 0) - stays
            tl.store(ranks + row, rank, mask=exists & (element == row_begin))
            tl.debug_barrier()
            position = rank - tl.load(ranks + row, mask=exists, other=0)
            num_stay += tl.sum(stays, 0)
        row_hash = tl.load(hashes + tl.load(selection + SELECTION_HASHES) + row, mask=exists, other=0)
        hashed = hash_128_to_64(row_hash, twang_mix64(position.to(tl.int64)))
        share = (hashed.to(tl.uint64, bitcast=True) >> 11).to(tl.int64)
        inside = (position < tl.load(selection + SELECTION_LIMIT)) & (share < rate)
        keep = tl.where(inside, stays, 0)
    return keep, num_stay
