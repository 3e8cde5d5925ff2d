# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""The probe: a kernel that copies so many elements and computes so many tiles, both read from device memory.

So one captured graph measures every size. Its first program may also write when it began, on the GPU's own clock.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def probe_kernel(
    source,
    target,
    sizes,
    stamps,
    stamp_at,
    tiles_there,
    TILE: tl.constexpr,
    ITERATIONS: tl.constexpr,
    STAMP: tl.constexpr,
):
    """sizes: [elements of int32 to copy, tiles to compute]. A tile computes ITERATIONS multiply-adds an element.

    tiles_there: of source and target; a longer copy begins anew from their first.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    if STAMP:  # noqa: SIM102  # known at compile time; the interpreter has no such clock
        if program == 0:
            tl.store(stamps + stamp_at, globaltimer())
    elements = tl.load(sizes)
    tile = program
    while tile * TILE < elements:
        lane = tl.arange(0, TILE)
        at = tile % tiles_there * TILE + lane
        is_wanted = tile * TILE + lane < elements
        tl.store(target + at, tl.load(source + at, mask=is_wanted), mask=is_wanted)
        tile += programs
    tiles = tl.load(sizes + 1)
    tile = program
    while tile < tiles:
        x = tile * TILE + tl.arange(0, TILE)
        for _ in range(ITERATIONS):
            x = x * 1664525 + 1013904223
        # One element in 2^32 is stored, so that all are computed.
        tl.store(target + tl.arange(0, TILE), x, mask=x == 0x7FFFFFFF)
        tile += programs
