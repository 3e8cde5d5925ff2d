# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""First pass over lists: the length of every result, its offsets, its total and its landmarks."""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import result_length
from rap_trainer.fusion.words import (
    LANDMARK_BITS,
    LIST_LANDMARKS,
    LIST_LENGTHS,
    LIST_NUM_LANDMARKS,
    LIST_OFFSETS,
    LIST_SLOT,
    LIST_WORDS,
)
from rap_trainer.fusion.words import LANDMARK_ELEMENTS as ELEMENTS

LANDMARK_ELEMENTS = tl.constexpr(ELEMENTS)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_rows"])
def scan_kernel(
    first,
    end,
    entries,
    pointers,
    num_slots,
    counts,
    offsets,
    landmarks,
    totals,
    lengths,
    num_rows,
    STRUCTURES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Entries [first, end), one at a time a program. `totals` int64; offsets int32, num_rows + 1 an entry."""
    index = first + tl.program_id(0)
    while index < end:
        entry = entries + index * LIST_WORDS
        carry = tl.zeros([], tl.int32)
        marks = tl.load(entry + LIST_LANDMARKS)
        num_marks = tl.load(entry + LIST_NUM_LANDMARKS)
        begin = 0
        while begin < num_rows:
            row = begin + tl.arange(0, ROWS)
            mask = row < num_rows
            length = result_length(entry, row, mask, pointers, num_slots, counts, STRUCTURES)
            held = tl.where(mask & (length > 0), length, 0)
            after = tl.cumsum(held, 0) + carry
            before = after - held
            _store_lengths(entry, row, mask, length, held, pointers, num_slots, lengths, num_rows)
            where_offsets = tl.load(entry + LIST_OFFSETS)
            if where_offsets >= 0:
                tl.store(offsets + where_offsets + row, before, mask=mask)
            if marks >= 0:
                window = (before + LANDMARK_ELEMENTS - 1) >> LANDMARK_BITS
                more = tl.max(tl.where(held > 0, ((after + LANDMARK_ELEMENTS - 1) >> LANDMARK_BITS) - window, 0), 0)
                k = 0
                while k < more:
                    begins = (held > 0) & (((window + k) << LANDMARK_BITS) < after) & (window + k < num_marks)
                    tl.store(landmarks + marks + window + k, row, mask=begins)
                    k += 1
            carry += tl.sum(held, 0)
            begin += ROWS
        tl.store(totals + index, carry.to(tl.int64))
        where_offsets = tl.load(entry + LIST_OFFSETS)
        if where_offsets >= 0:
            tl.store(offsets + where_offsets + num_rows, carry)
        last = (carry + LANDMARK_ELEMENTS - 1) >> LANDMARK_BITS
        if (marks >= 0) & (last < num_marks):
            tl.store(landmarks + marks + last, num_rows - 1)
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
