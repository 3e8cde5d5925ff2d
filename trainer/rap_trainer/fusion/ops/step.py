# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""A step: one element function with its parameters, as a row of the device table. No op itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from rap_trainer.fusion.stages import Slot

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


def divisor_words(divisor: int) -> tuple[int, int, int]:
    """(divisor, floor(2^64 / divisor), 2^64 mod divisor) as int64 words, for `floor_mod`."""
    reciprocal = min(2**64 // divisor, 2**64 - 1)
    return divisor, signed(reciprocal), 2**64 % divisor


@triton.jit
def float_parameter(step, at: tl.constexpr, like):
    """Parameter `at` of a step, a float, in the element type of `like`."""
    return tl.load(step + at).to(tl.float64, bitcast=True).to(like.dtype)


@triton.jit
def floor_mod(x, step, at: tl.constexpr):
    """Floor-mod of int64 x by the divisor whose words begin at parameter `at`.

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
