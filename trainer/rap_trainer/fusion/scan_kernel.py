# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""First pass over lists: the length of every result, its offsets, its total, and which rows of each group have elements."""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import result_length
from rap_trainer.fusion.words import (
    LIST_CAPACITY,
    LIST_FILLED,
    LIST_LENGTHS,
    LIST_OFFSETS,
    LIST_SLOT,
    LIST_WORDS,
)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_rows"])
def scan_kernel(
    first,
    end,
    entries,
    pointers,
    num_slots,
    counts,
    offsets,
    filled,
    totals,
    lengths,
    num_rows,
    STRUCTURES: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Entries [first, end), one at a time a program. `totals` int64; offsets int32, num_rows + 1 an entry.

    `filled`: of each GROUP of rows those that have elements, one after the other. Rows from the first on that does not fit its destination get no elements,
    so that nobody reads or writes beyond it; the total counts them.
    """
    index = first + tl.program_id(0)
    while index < end:
        entry = entries + index * LIST_WORDS
        carry, kept = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
        room = tl.load(entry + LIST_CAPACITY)
        notes = tl.load(entry + LIST_FILLED)
        begin = 0
        while begin < num_rows:
            row = begin + tl.arange(0, ROWS)
            mask = row < num_rows
            length = result_length(entry, row, mask, pointers, num_slots, counts, STRUCTURES)
            held = tl.where(mask & (length > 0), length, 0)
            total = tl.sum(held, 0)
            after = tl.cumsum(held, 0) + carry
            before = after - held
            if carry + total > room:
                fits = after <= room
                held, length = tl.where(fits, held, 0), tl.where(fits, length, tl.minimum(length, 0))
                kept += tl.sum(held, 0)
                before = tl.minimum(before, kept)
            else:
                kept += total
            _store_lengths(entry, row, mask, length, held, pointers, num_slots, lengths, num_rows)
            where_offsets = tl.load(entry + LIST_OFFSETS)
            if where_offsets >= 0:
                tl.store(offsets + where_offsets + row, before, mask=mask)
            if notes >= 0:
                has = tl.reshape((held > 0).to(tl.int32), (ROWS // GROUP, GROUP))
                before = tl.reshape(tl.cumsum(has, 1) - has, (ROWS,))
                tl.store(filled + notes + row - row % GROUP + before, row, mask=held > 0)
            carry += total
            begin += ROWS
        tl.store(totals + index, carry.to(tl.int64))
        where_offsets = tl.load(entry + LIST_OFFSETS)
        if where_offsets >= 0:
            tl.store(offsets + where_offsets + num_rows, kept)
        index += tl.num_programs(0)


@triton.jit
def _store_lengths(entry, row, mask, length, held, pointers, num_slots, lengths, num_rows):
    target = tl.load(entry + LIST_LENGTHS)
    if target >= 0:
        tl.store(lengths + target * num_rows + row, held, mask=mask)
    slot = tl.load(entry + LIST_SLOT)
    if slot >= 0:
        address = tl.load(pointers + 2 * num_slots + slot).to(tl.pointer_type(tl.int32))
        tl.store(address + row, length, mask=mask)
