# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""A step: one element function with its parameters, as a row of the device table. No op itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import triton
import triton.language as tl

from rap_trainer.fusion.slot import Slot

STEP_WORDS = 8
"""int64 words of a step's row: 64 bytes, two sectors of a cache line."""
MAX_PARAMETERS = STEP_WORDS - 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """One element function of a chain.

    `ints` and `floats` are constants that live in a pool; the pool's offset is written into
    parameter `pool_at` when tables are built.
    """

    name: str
    """Of the element function, for explanations; a key of `CODES`."""
    parameters: tuple[int, ...] = ()
    """int64 words; floats as `float_word`."""
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    pool_at: int | None = None
    slot: Slot | None = None
    """One number a row that is read too; the slot's place is written into the first parameter."""

    def __post_init__(self) -> None:
        assert len(self.parameters) <= MAX_PARAMETERS, self


def float_word(value: float) -> int:
    """The bits of a float64 as int64."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def signed(word: int) -> int:
    """An unsigned 64-bit word as the int64 of the same bits."""
    return word - 2**64 if word >= 2**63 else word


MAX_FAST_DIVISOR = 2**30
"""Largest divisor of `floor_mod`: its remainders fit int32 with a bit to spare."""


def divisor_words(divisor: int) -> tuple[int, int, int, int]:
    """For `floor_mod`: (large, 1 / large as float64, divisor, floor(2^32 / divisor)).

    `large` is the divisor times a power of two, in (2^29, 2^30]. Divisors up to MAX_FAST_DIVISOR.
    """
    assert 1 <= divisor <= MAX_FAST_DIVISOR
    large = divisor
    while 2 * large <= MAX_FAST_DIVISOR:
        large *= 2
    return large, float_word(1.0 / large), divisor, min(2**32 // divisor, 2**32 - 1)


def wide_divisor_words(divisor: int) -> tuple[int, int, int]:
    """(divisor, floor(2^64 / divisor), 2^64 mod divisor) as int64 words, for `wide_floor_mod`."""
    reciprocal = min(2**64 // divisor, 2**64 - 1)
    return divisor, signed(reciprocal), 2**64 % divisor


@triton.jit
def float_parameter(step, at: tl.constexpr, like):
    """Parameter `at` of a step, a float, in the element type of `like`."""
    return tl.load(step + at).to(tl.float64, bitcast=True).to(like.dtype)


ROUNDING = tl.constexpr(
    6755399441055744.0
)  # 1.5 * 2^52: a double that is added to it is rounded to an integer in its low bits


@triton.jit
def floor_mod(x, step, at: tl.constexpr):
    """Floor-mod of int64 x by the divisor whose four words begin at parameter `at`; 14 instructions (sm_90).

    First by `large` = divisor * 2^k in (2^29, 2^30]: x / large, rounded, is off by less than 2^-16 (x rounds to a
    double with an error below 2^10, the quotient is below 2^34), so x - quotient * large lies within +-0.51 large,
    is exact in 32 bits, and one correction puts it into [0, large). Then by the divisor: umulhi(r, floor(2^32 / d))
    is floor(r / d) or one less, and an unsigned minimum makes the correction.
    """
    large = tl.load(step + at).to(tl.int32)
    inverse = tl.load(step + at + 1).to(tl.float64, bitcast=True)
    divisor = tl.load(step + at + 2).to(tl.uint32)
    reciprocal = tl.load(step + at + 3).to(tl.uint32)
    quotient = (x.to(tl.float64) * inverse + ROUNDING).to(tl.int64, bitcast=True).to(tl.int32)
    rest = x.to(tl.int32) - quotient * large
    u = tl.where(rest < 0, rest + large, rest).to(tl.uint32, bitcast=True)
    u = u - tl.umulhi(u, reciprocal + tl.zeros_like(u)) * divisor
    return tl.minimum(u, u - divisor).to(tl.int64)


@triton.jit
def wide_floor_mod(x, step, at: tl.constexpr):
    """Floor-mod of int64 x by any divisor, whose three words begin at parameter `at`; 32 instructions.

    q = umulhi(u, floor(2^64 / d)) is floor(u / d) or one less for any 64-bit u, so one correction makes
    u mod d exact; a negative x is u - 2^64. No division: 64-bit ones cost about a hundred instructions.
    """
    divisor = tl.load(step + at)
    reciprocal = tl.load(step + at + 1).to(tl.uint64, bitcast=True)
    wrap = tl.load(step + at + 2)
    u = x.to(tl.uint64, bitcast=True)
    quotient = tl.umulhi(u, reciprocal.to(tl.uint64) + tl.zeros_like(u))
    rest = (u - quotient * divisor.to(tl.uint64)).to(tl.int64, bitcast=True)
    # divisor < 2^63 and rest < 2 * divisor as unsigned: compare as unsigned, then it fits int64
    too_big = rest.to(tl.uint64, bitcast=True) >= divisor.to(tl.uint64)
    rest = tl.where(too_big, rest - divisor, rest)
    rest = tl.where(x < 0, rest - wrap, rest)
    return tl.where(rest < 0, rest + divisor, rest)
