# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Samples drawn once for all features: an element is drawn by its row, its position, rate and salt, never by what it is.

hash_128_to_64(hash_128_to_64(salt, twang_mix64(row id)), twang_mix64(position)), of which the upper 53 bits are below the rate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64, twang_mix64
from rap_trainer.fusion.warp import ranks
from rap_trainer.fusion.words import DRAW_RATE, DRAW_SALT, DRAW_WORDS


@triton.jit
def row_hash(salt, row_ids, row):
    """int64: what a draw takes of a row."""
    return hash_128_to_64(salt, twang_mix64(tl.load(row_ids + row)))


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
    BALLOTS: tl.constexpr,
):
    """Draws [first, end) x groups of ROWS rows. `capacity`: rows of each draw's part of the results. BALLOTS: of `warp`.

    `drawn`: a bit a position, POSITIONS // 32 int32 a row. `places`: the positions that are drawn, one after the other, POSITIONS int8 a row.
    """
    WORDS: tl.constexpr = POSITIONS // 32
    groups = (num_rows + ROWS - 1) // ROWS
    position = tl.arange(0, POSITIONS)
    mixed = twang_mix64(position.to(tl.int64))
    item = tl.program_id(0)
    while item < (end - first) * groups:
        number = first + item // groups
        draw = draws + number * DRAW_WORDS
        salt, rate = tl.load(draw + DRAW_SALT), tl.load(draw + DRAW_RATE)
        row = (item % groups) * ROWS
        last = tl.minimum(row + ROWS, num_rows)
        while row < last:
            takes = sampled(row_hash(salt, row_ids, row) + tl.zeros_like(mixed), mixed, rate).to(tl.int32)
            at = number.to(tl.int64) * capacity + row
            bits = tl.sum(tl.reshape(takes, (WORDS, 32)) << tl.arange(0, 32)[None, :], 1)
            tl.store(drawn + at * WORDS + tl.arange(0, WORDS), bits)
            before, _number = ranks(takes, BALLOTS)
            tl.store(places + at * POSITIONS + before, position.to(tl.int8), mask=takes != 0)
            row += 1
        item += tl.num_programs(0)
