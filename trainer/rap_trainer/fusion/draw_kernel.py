# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Samples drawn once for all features: an element is drawn by its row, its position, rate and salt, never by what it is.

hash_128_to_64(hash_128_to_64(salt, twang_mix64(row id)), twang_mix64(position)), of which the upper 53 bits are below the rate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64, twang_mix64
from rap_trainer.fusion.words import DRAW_RATE, DRAW_SALT, DRAW_WORDS


@triton.jit
def row_hashes(salt, row_ids, row, mask):
    """int64 [R]: what a draw takes of each row."""
    row_id = tl.load(row_ids + row, mask=mask, other=0)
    return hash_128_to_64(salt + tl.zeros_like(row_id), twang_mix64(row_id))


@triton.jit
def sampled(row_hash, mixed, rate):
    """Whether elements are drawn; `mixed`: twang_mix64 of their positions."""
    hashed = hash_128_to_64(row_hash, mixed).to(tl.uint64, bitcast=True)
    last = ((rate << 11) - 1).to(tl.uint64, bitcast=True)
    return (hashed <= last) & (rate > 0)


@triton.jit(do_not_specialize=["first", "end", "num_rows", "capacity"])
def draw_kernel(
    first,
    end,
    draws,
    row_ids,
    num_rows,
    capacity,
    drawn,
    places,
    ROWS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Draws [first, end) x groups of ROWS rows. `capacity`: rows of each draw's part of the results.

    `drawn`: a bit a position, POSITIONS // 32 int32 a row. `places`: the positions that are drawn, one after the other, POSITIONS int8 a row.
    """
    WORDS: tl.constexpr = POSITIONS // 32
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < (end - first) * groups:
        number = first + item // groups
        draw = draws + number * DRAW_WORDS
        row = (item % groups) * ROWS + tl.arange(0, ROWS)
        mask = row < num_rows
        position = tl.arange(0, POSITIONS)
        row_hash = row_hashes(tl.load(draw + DRAW_SALT), row_ids, row, mask)
        mixed = twang_mix64(position.to(tl.int64))
        takes = sampled(row_hash[:, None], mixed[None, :], tl.load(draw + DRAW_RATE)).to(tl.int32)
        at = number * capacity + row
        bits = tl.sum(tl.reshape(takes, (ROWS, WORDS, 32)) << tl.arange(0, 32)[None, None, :], 2)
        word = at[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
        tl.store(drawn + word, bits, mask=mask[:, None])
        place = at[:, None] * POSITIONS + tl.cumsum(takes, 1) - takes
        tl.store(
            places + place, (position[None, :] + tl.zeros_like(takes)).to(tl.int8), mask=mask[:, None] & (takes != 0)
        )
        item += tl.num_programs(0)
