# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""sigrid_hash: twang_mix64, then hash_128_to_64 with the salt, then floor-mod; all uint64, wrapping."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.sigrid_hash import SigridHash

from rap_trainer.fusion.ops.step import (
    MAX_FAST_DIVISOR,
    Step,
    divisor_words,
    floor_mod,
    wide_divisor_words,
    wide_floor_mod,
)

HASH_MULTIPLIER = tl.constexpr(0x9DDFEA08EB382D69)  # of CityHash's hash_128_to_64


def encode(op: SigridHash) -> Step:
    """The op as a step."""
    assert op.max_value is not None
    if op.max_value > MAX_FAST_DIVISOR:
        return Step(name="sigrid_hash_wide", parameters=(op.salt, *wide_divisor_words(op.max_value)))
    return Step(name="sigrid_hash", parameters=(op.salt, *divisor_words(op.max_value)))


@triton.jit
def hash_128_to_64(upper, lower):
    """CityHash's mix of two int64 into one int64."""
    u = upper.to(tl.uint64, bitcast=True)
    low = lower.to(tl.uint64, bitcast=True)
    a = (low ^ u) * HASH_MULTIPLIER
    a = a ^ (a >> 47)
    b = (u ^ a) * HASH_MULTIPLIER
    b = b ^ (b >> 47)
    return (b * HASH_MULTIPLIER).to(tl.int64, bitcast=True)


@triton.jit
def twang_mix64(x):
    """Thomas Wang's mix of an int64; its sums of shifts are products: two instructions each, of the multipliers' own pipe."""
    key = x.to(tl.uint64, bitcast=True) * ((1 << 21) - 1) - 1
    key = key ^ (key >> 24)
    key = key * (1 + (1 << 3) + (1 << 8))
    key = key ^ (key >> 14)
    key = key * (1 + (1 << 2) + (1 << 4))
    key = key ^ (key >> 28)
    return (key * (1 + (1 << 31))).to(tl.int64, bitcast=True)


@triton.jit
def hashed(x, step):
    """int64 x -> int64, with the salt of a step."""
    salt = tl.load(step + 1)
    return hash_128_to_64(salt + tl.zeros_like(x), twang_mix64(x))


@triton.jit
def sigrid_hash(x, step):
    """int64 x -> [0, max), max up to MAX_FAST_DIVISOR."""
    return floor_mod(hashed(x, step), step, 2)


@triton.jit
def sigrid_hash_wide(x, step):
    """int64 x -> [0, max)."""
    return wide_floor_mod(hashed(x, step), step, 2)
