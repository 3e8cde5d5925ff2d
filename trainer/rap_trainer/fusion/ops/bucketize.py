# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""bucketize: number of borders < x (left, with TorchArrow's step for repeats) or <= x (right); NaN -> 0."""

from __future__ import annotations

import math

import numpy as np
import triton
import triton.language as tl
from rap_contract.ops.bucketize import Bucketize
from rap_contract.types import Dtype, ValueType

from rap_trainer.fusion.ops.elements import flag
from rap_trainer.fusion.ops.step import Step


def encode(op: Bucketize, value: ValueType, *, counts: bool) -> Step:
    """The op on `value` as a step: (borders, search steps, right, place in the pool, whether to count NaN).

    Integers are compared exactly: b < x is floor(b) < x, b <= x is ceil(b) <= x, so the pool holds
    the floors, then the ceilings, cut to int64.
    """
    steps = len(op.borders).bit_length()
    right = int(op.side == "right")
    if value.dtype.is_integer:
        low, high = Dtype.INT64.integer_bounds
        cut = [[min(max(r(b), low), high) for b in op.borders] for r in (math.floor, math.ceil)]
        return Step(
            name="bucketize_int", parameters=(len(op.borders), steps, right, 0), ints=(*cut[0], *cut[1]), pool_at=3
        )
    rounded = [float(np.float32(b)) for b in op.borders] if value.dtype is Dtype.FLOAT32 else op.borders
    return Step(
        name="bucketize", parameters=(len(op.borders), steps, right, 0, int(counts)), floats=tuple(rounded), pool_at=3
    )


@triton.jit
def bucketize(x, borders, num_borders, num_steps, right):
    """Floats; `borders` points at float64, exact for float32 too."""
    low = tl.zeros_like(x).to(tl.int64)
    high = low + num_borders
    k = 0
    while k < num_steps:
        middle = (low + high) // 2
        open_ = low < high
        border = tl.load(borders + middle, mask=open_, other=0.0).to(x.dtype)
        below = flag(border < x) | (flag(border == x) & (right != 0))
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & ~below, middle, high)
        k += 1
    follows = (low + 1 < num_borders) & (right == 0)
    next_border = tl.load(borders + low + 1, mask=follows, other=0.0).to(x.dtype)
    low = tl.where(follows & flag(x >= next_border), low + 1, low)
    return tl.where(x != x, 0, low)


@triton.jit
def bucketize_int(x, borders, num_borders, num_steps, right):
    """Integers; `borders` points at num_borders floors, then as many ceilings."""
    low = tl.zeros_like(x)
    high = low + num_borders
    ceilings = borders + num_borders
    k = 0
    while k < num_steps:
        middle = (low + high) // 2
        open_ = low < high
        floor = tl.load(borders + middle, mask=open_, other=0)
        ceiling = tl.load(ceilings + middle, mask=open_, other=0)
        below = tl.where(right != 0, ceiling <= x, floor < x)
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & ~below, middle, high)
        k += 1
    follows = (low + 1 < num_borders) & (right == 0)
    next_border = tl.load(ceilings + low + 1, mask=follows, other=0)
    return tl.where(follows & (x >= next_border), low + 1, low)
