# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Elements read from a column of any type and written to scratch, and flags about them. No op itself."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rap_trainer.fusion.words import KIND_FLOAT32, KIND_INT64

INT32 = tl.constexpr(0)
INT64 = tl.constexpr(1)
FLOAT32 = tl.constexpr(2)
FLOAT64 = tl.constexpr(3)
DTYPE_CODES = {"int32": 0, "int64": 1, "float32": 2, "float64": 3}


INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Triton's interpreter has none of CUDA's own functions; ops that need them are written in other terms there."""


@triton.jit
def natural_log(x):
    """ln x as PyTorch computes it; the hardware's fast logarithm is off by 1e-7 near 1, where ln is 0."""
    if INTERPRETED:
        result = tl.log(x)
    else:
        result = libdevice.log(x)
    return result


@triton.jit
def flag(condition):
    """A comparison of floats as a flag to combine with others: Triton's interpreter gives it the type of the floats."""
    return tl.where(condition, 1, 0) != 0


@triton.jit
def load_element(address, dtype, index, mask, FLOAT: tl.constexpr):
    """(i, f) of elements of a column of any type; only the column's own bytes are read."""
    i = tl.zeros(index.shape, tl.int64)
    f = tl.zeros(index.shape, FLOAT)
    if dtype == INT32:
        i = tl.load(address.to(tl.pointer_type(tl.int32)) + index, mask=mask, other=0).to(tl.int64)
    elif dtype == INT64:
        i = tl.load(address.to(tl.pointer_type(tl.int64)) + index, mask=mask, other=0)
    elif dtype == FLOAT32:
        f = tl.load(address.to(tl.pointer_type(tl.float32)) + index, mask=mask, other=0.0).to(FLOAT)
    else:
        f = tl.load(address.to(tl.pointer_type(tl.float64)) + index, mask=mask, other=0.0).to(FLOAT)
    return i, f


@triton.jit
def null_flags(pointers, num_slots, slot, index, mask):
    """int8: 1 where an element of a slot is null; nothing is read of a slot without null flags."""
    return load_flags(tl.load(pointers + num_slots + slot), index, mask)


@triton.jit
def load_flags(address, index, mask):
    """int8: null flags of elements; 0 without reading anything where the address is 0."""
    null = tl.zeros(index.shape, tl.int8)
    if address != 0:
        null = tl.load(address.to(tl.pointer_type(tl.int8)) + index, mask=mask, other=0)
    return null


@triton.jit
def store_scratch(kind, address, i, f, index, mask):
    """Writes elements to scratch of the type that KIND_INT64 and its followers name."""
    if kind == KIND_INT64:
        tl.store(address.to(tl.pointer_type(tl.int64)) + index, i, mask=mask)
    elif kind == KIND_FLOAT32:
        tl.store(address.to(tl.pointer_type(tl.float32)) + index, f.to(tl.float32), mask=mask)
    else:
        tl.store(address.to(tl.pointer_type(tl.float64)) + index, f.to(tl.float64), mask=mask)
