# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""Remainders without division: every int64 by every divisor, exact where rounding is at its worst."""

from __future__ import annotations

import random

import pytest
import torch
import triton
import triton.language as tl
from rap_trainer.fusion.ops.step import (
    MAX_FAST_DIVISOR,
    divisor_words,
    floor_mod,
    wide_divisor_words,
    wide_floor_mod,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM = 512
EXTREMES = (0, 1, -1, 2**63 - 1, -(2**63), 2**62, -(2**62), 2**53 + 1, -(2**53) - 1, 2**31, 2**32 - 1)


@triton.jit
def remainders(x, words, out, NUM_X: tl.constexpr, WIDE: tl.constexpr):
    at = tl.arange(0, NUM_X)
    value = tl.load(x + at)
    if WIDE:  # noqa: SIM108  # decided when compiled
        value = wide_floor_mod(value, words, 0)
    else:
        value = floor_mod(value, words, 0)
    tl.store(out + at, value)


def numbers(divisor: int) -> list[int]:
    """Extremes, neighbours of multiples of the divisor near them, and random numbers of all sizes."""
    draw = random.Random(divisor)
    near = [
        min(max((base // divisor) * divisor + shift, -(2**63)), 2**63 - 1) for base in EXTREMES for shift in (-1, 0, 1)
    ]
    halves = [base - base % divisor + divisor // 2 + shift for base in (2**40, -(2**40), 2**61) for shift in (-1, 0, 1)]
    found = [*EXTREMES, *near, *halves]
    return [*found, *(draw.randint(-(2**63), 2**63 - 1) >> draw.randrange(64) for _ in range(NUM - len(found)))]


@pytest.mark.parametrize(
    "divisor",
    [1, 2, 3, 7, 1000, 65_535, 65_536, 1_000_003, 10_131_227, 2**29 - 1, 2**29, 2**29 + 1, 2**30 - 1, MAX_FAST_DIVISOR],
)
@pytest.mark.parametrize("wide", [False, True], ids=["fast", "wide"])
def test_remainders_are_those_of_python(divisor: int, wide: bool) -> None:
    values = numbers(divisor)
    words = wide_divisor_words(divisor) if wide else divisor_words(divisor)
    out = torch.empty(NUM, dtype=torch.int64, device=DEVICE)
    remainders[(1,)](torch.tensor(values, device=DEVICE), torch.tensor(words, device=DEVICE), out, NUM, wide)
    assert out.tolist() == [value % divisor for value in values]


@pytest.mark.parametrize("divisor", [MAX_FAST_DIVISOR + 1, 2**40 + 15, 2**63 - 1])
def test_divisors_beyond_the_fast_ones_are_exact_too(divisor: int) -> None:
    values = numbers(divisor)
    out = torch.empty(NUM, dtype=torch.int64, device=DEVICE)
    words = torch.tensor(wide_divisor_words(divisor), device=DEVICE)
    remainders[(1,)](torch.tensor(values, device=DEVICE), words, out, NUM, True)
    assert out.tolist() == [value % divisor for value in values]
