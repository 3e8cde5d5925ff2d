# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Scans over flags of a tile, and which range holds an element: where one warp has four elements a thread, by ballots and population counts.

Triton's own scans take five shuffles for every register. Its inline assembly sees the four registers of a thread in order, register k
of lane l holding element 32 k + l (the layout of every tile here; tests on a GPU fail with any other). Elsewhere, in the
interpreter and with several warps, the same by Triton's scans.
"""

from __future__ import annotations

import triton
import triton.language as tl

ONE_WARP_TILE = 128
"""Elements of a tile that four registers of each thread of a warp hold."""

_OUTPUTS = ",".join(["=&r"] * 8)


RANKS = tl.constexpr(
    "{ .reg .pred p; .reg .b32 b, t, n, below; mov.u32 below, %lanemask_lt; mov.u32 n, 0; "
    + " ".join(
        f"setp.ne.s32 p, ${8 + k}, 0; vote.sync.ballot.b32 b, p, 0xffffffff; and.b32 t, b, below; popc.b32 t, t; "
        f"add.s32 ${k}, t, n; popc.b32 t, b; add.s32 n, n, t;"
        for k in range(4)
    )
    + " ".join(f" mov.u32 ${4 + k}, n;" for k in range(4))
    + " }"
)
"""Of the flags in $8 to $11: the flags before each element, and all of them."""
RANKS_OPERANDS = tl.constexpr(_OUTPUTS + ",r" * 4)

OWNERS = tl.constexpr(
    "{ .reg .pred p; .reg .b32 r, m, t, j, n, upto; mov.u32 upto, %lanemask_le; setp.lt.s32 p, $8, $20; "
    "vote.sync.ballot.b32 n, p, 0xffffffff; popc.b32 n, n; sub.s32 r, $8, $20; "
    + " ".join(
        "shl.b32 m, 1, r; redux.sync.or.b32 m, m, 0xffffffff; and.b32 t, m, upto; popc.b32 t, t; "
        "add.s32 j, n, t; add.s32 j, j, -1; "
        f"shfl.sync.idx.b32 ${k}, $12, j, 31, 0xffffffff; shfl.sync.idx.b32 ${4 + k}, $16, j, 31, 0xffffffff; "
        "popc.b32 t, m; add.s32 n, n, t; add.s32 r, r, -32;"
        for k in range(4)
    )
    + " }"
)
"""Of ranges, each lane one: where it begins in $8, two numbers of it in $12 and $16; the first element of a tile in $20. The two numbers of the range of each
element. A shift of 32 or more gives 0."""
OWNERS_OPERANDS = tl.constexpr(_OUTPUTS + ",r" * 16)


@triton.jit
def larger(a, b):
    """The larger of two numbers."""
    return tl.maximum(a, b)


@triton.jit
def running_max(x, ahead):
    """The largest so far, `ahead` of the first element included."""
    return tl.maximum(tl.associative_scan(x, 0, larger), ahead)


@triton.jit
def ranks(flags, BALLOTS: tl.constexpr):
    """(flagged elements before each, all of them), int32 [T] both; `flags`: 0 or 1. BALLOTS: one warp, four elements a thread."""
    if BALLOTS:
        before, number = tl.inline_asm_elementwise(
            RANKS, RANKS_OPERANDS, [flags], dtype=(tl.int32, tl.int32), is_pure=False, pack=4
        )
    else:
        before = tl.cumsum(flags, 0) - flags
        number = tl.zeros_like(flags) + tl.sum(flags, 0)
    return before, number


@triton.jit
def owners(begins, first, second, at, TILE: tl.constexpr, BALLOTS: tl.constexpr):
    """`first` and `second` of the range that holds each of the elements from `at` on, int32 [T] both.

    Ranges lie one after the other, none of them empty; `begins` of none is past all elements. BALLOTS: the three are [T] and hold 32 ranges over and over.
    """
    if BALLOTS:
        one, two = tl.inline_asm_elementwise(
            OWNERS,
            OWNERS_OPERANDS,
            [begins, first, second, at + tl.zeros_like(begins)],
            dtype=(tl.int32, tl.int32),
            is_pure=False,
            pack=4,
        )
    else:
        element = at + tl.arange(0, TILE)
        number = tl.sum((begins[None, :] <= element[:, None]).to(tl.int32), 1) - 1
        one, two = tl.gather(first, number, 0), tl.gather(second, number, 0)
    return one, two
