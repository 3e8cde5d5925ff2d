# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""positive_modulus: floor-mod; by a power of two the low bits, else with `floor_mod` or `wide_floor_mod`."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.positive_modulus import PositiveModulus

from rap_trainer.fusion.ops.step import MAX_FAST_DIVISOR, Step, divisor_words, wide_divisor_words


def encode(op: PositiveModulus) -> Step:
    """The op as a step."""
    modulus = op.n
    if modulus & (modulus - 1) == 0:
        return Step(name="low_bits", parameters=(modulus - 1,))
    if modulus > MAX_FAST_DIVISOR:
        return Step(name="positive_modulus_wide", parameters=wide_divisor_words(modulus))
    return Step(name="positive_modulus", parameters=divisor_words(modulus))


@triton.jit
def low_bits(x, step):
    """int64 x modulo a power of two, whose mask is the first parameter."""
    return x & tl.load(step + 1)
