# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Which elements of lists remain: nulls collapsed, a sample drawn. Rows are tiles, positions run in chunks.

sample: hash_128_to_64(hash_128_to_64(salt, twang_mix64(row id)), twang_mix64(position)) >> 11 < rate * 2^53.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import raw_length
from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64, twang_mix64
from rap_trainer.fusion.words import (
    OPERAND_CHOSEN,
    OPERAND_COUNTS,
    OPERAND_OFFSETS,
    OPERAND_SLOT,
    PROPAGATE,
    SELECTION_LIMIT,
    SELECTION_MODE,
    SELECTION_PARTNER,
    SELECTION_RATE,
    SELECTION_SALT,
    SELECTION_WORDS,
    SKIP,
)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_rows"])
def select_kernel(
    first,
    end,
    selections,
    pointers,
    num_slots,
    offsets,
    counts,
    chosen,
    row_ids,
    num_rows,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Selections [first, end) x groups of ROWS rows. Writes `counts`, and positions into `chosen` where wanted."""
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < (end - first) * groups:
        selection = selections + (first + item // groups) * SELECTION_WORDS
        row = (item % groups) * ROWS + tl.arange(0, ROWS)
        mask = row < num_rows
        source = raw_length(selection, row, mask, pointers, num_slots)
        length = tl.maximum(source, 0)
        begins = tl.load(selection + OPERAND_OFFSETS)
        start = row
        if begins >= 0:
            start = tl.load(offsets + begins + row, mask=mask, other=0)
        taken, has_null = _rows(selection, row, mask, length, start, pointers, num_slots, chosen, row_ids, ROWS, WIDTH)
        null_row = (has_null & (tl.load(selection + SELECTION_MODE) == PROPAGATE)) | (source < 0)
        where_counts = tl.load(selection + OPERAND_COUNTS)
        tl.store(counts + where_counts + row, tl.where(null_row, -1, taken), mask=mask)
        item += tl.num_programs(0)


@triton.jit
def _rows(
    selection,
    row,
    mask,
    length,
    start,
    pointers,
    num_slots,
    chosen,
    row_ids,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """(elements taken, whether one is null) of each row of a tile."""
    skip = tl.load(selection + SELECTION_MODE) == SKIP
    limit = tl.load(selection + SELECTION_LIMIT)
    rate = tl.load(selection + SELECTION_RATE)
    partner = tl.load(selection + SELECTION_PARTNER)
    own = tl.load(pointers + num_slots + tl.load(selection + OPERAND_SLOT))
    others = tl.load(pointers + num_slots + tl.maximum(partner, 0))
    where_chosen = tl.load(selection + OPERAND_CHOSEN)
    row_hash = tl.zeros([ROWS], tl.int64)
    if rate >= 0:
        row_id = tl.load(row_ids + row, mask=mask, other=0)
        salt = tl.load(selection + SELECTION_SALT)
        row_hash = hash_128_to_64(salt + tl.zeros_like(row_id), twang_mix64(row_id))
    seen = tl.zeros([ROWS], tl.int32)
    taken = tl.zeros([ROWS], tl.int32)
    has_null = tl.zeros([ROWS], tl.int32)
    longest = tl.max(length, 0)
    begin = 0
    while begin < longest:
        at = begin + tl.arange(0, WIDTH)
        exists = mask[:, None] & (at[None, :] < length[:, None])
        index = start[:, None].to(tl.int64) + at[None, :]
        null = tl.zeros([ROWS, WIDTH], tl.int8)
        if own != 0:
            null = tl.load(own.to(tl.pointer_type(tl.int8)) + index, mask=exists, other=0)
        if partner >= 0:
            if others != 0:
                null |= tl.load(others.to(tl.pointer_type(tl.int8)) + index, mask=exists, other=0)
        has_null = tl.maximum(has_null, tl.max((null != 0).to(tl.int32), 1))
        stays = (exists & ((null == 0) | (skip == 0))).to(tl.int32)
        position = seen[:, None] + tl.cumsum(stays, 1) - stays
        keep = (stays != 0) & (position < limit)
        if rate >= 0:
            hashed = hash_128_to_64(
                row_hash[:, None] + tl.zeros([ROWS, WIDTH], tl.int64), twang_mix64(position.to(tl.int64))
            )
            keep = keep & ((hashed.to(tl.uint64, bitcast=True) >> 11).to(tl.int64) < rate)
        kept = keep.to(tl.int32)
        to = taken[:, None] + tl.cumsum(kept, 1) - kept
        if where_chosen >= 0:
            place = chosen + where_chosen + start[:, None].to(tl.int64) + to
            tl.store(place, at[None, :] + tl.zeros([ROWS, WIDTH], tl.int32), mask=keep)
        seen += tl.sum(stays, 1)
        taken += tl.sum(kept, 1)
        begin += WIDTH
    return taken, has_null != 0
