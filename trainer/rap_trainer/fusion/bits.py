# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Sets of up to 32 elements as the bits of an int32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_bits(number):
    """int32: the lowest `number` bits, all of them from 32 on, none for a negative number."""
    bits = tl.full(number.shape, 1, tl.int32) << tl.minimum(tl.maximum(number, 0), 31)
    return tl.where(number > 31, -1, bits - 1)


@triton.jit
def num_bits(x):
    """int32: bits that are set. Written as LLVM knows it: one instruction."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32, bitcast=True)
