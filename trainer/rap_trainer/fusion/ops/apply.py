# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Chains applied to a tile of elements: what every fused kernel does between its read and its write.

An element is (i, f, null): int64, float and null flag in registers; a chain uses whichever its types name. A kernel
is compiled for the different chains of its launch; which of them a tile takes is one number, uniform over the tile, so
that a chain runs without a branch. Parameters are words of the step table. No op itself. `memory`, wherever it is passed: (steps, ints,
floats, pointers, number of slots, counters), what steps may read and add to.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.boxcox import boxcox, boxcox_log
from rap_trainer.fusion.ops.bucketize import bucketize, bucketize_int
from rap_trainer.fusion.ops.clamp import clamp_float, clamp_int
from rap_trainer.fusion.ops.codes import (
    AFFINE,
    BOXCOX,
    BOXCOX_LOG,
    BUCKETIZE,
    BUCKETIZE_INT,
    CLAMP_FLOAT,
    CLAMP_INT,
    CONSTANT,
    ENUMERATE,
    FILL_FLOAT,
    FILL_INT,
    IN_RANGE,
    LOCAL_HOUR,
    LOCAL_HOUR_COLUMN,
    LOG,
    LOG1P,
    LOGIT,
    LOW_BITS,
    MAP_ID,
    ONEHOT,
    POSITIVE_MODULUS,
    POSITIVE_MODULUS_WIDE,
    SIGRID_HASH,
    SIGRID_HASH_WIDE,
    TO_FLOAT,
)
from rap_trainer.fusion.ops.elements import flag, load_element, null_flags
from rap_trainer.fusion.ops.fill_null import fill_float, fill_int
from rap_trainer.fusion.ops.local_hour import local_hour
from rap_trainer.fusion.ops.log import log
from rap_trainer.fusion.ops.log1p import log1p
from rap_trainer.fusion.ops.logit import logit
from rap_trainer.fusion.ops.map_id import map_id
from rap_trainer.fusion.ops.onehot import onehot
from rap_trainer.fusion.ops.positive_modulus import low_bits
from rap_trainer.fusion.ops.sigrid_hash import sigrid_hash, sigrid_hash_wide
from rap_trainer.fusion.ops.standardize import affine
from rap_trainer.fusion.ops.step import STEP_WORDS, floor_mod, wide_floor_mod

STEP_SIZE = tl.constexpr(STEP_WORDS)


@triton.jit
def apply_chain(chain, first, element, position, row, mask, memory, CHAINS: tl.constexpr):
    """The element after chain number `chain` of CHAINS (codes of steps), whose parameters begin at step `first`."""
    i, f, null = element
    for number in tl.static_range(len(CHAINS)):
        if chain == number:
            i, f, null = apply_steps(CHAINS, number, first, (i, f, null), position, row, mask, memory)
    return i, f, null


@triton.jit
def apply_steps(CHAINS: tl.constexpr, NUMBER: tl.constexpr, first, element, position, row, mask, memory):
    """The element after chain NUMBER, whose parameters begin at step `first`."""
    i, f, null = element
    for place in tl.static_range(len(CHAINS[NUMBER])):
        step = memory[0] + (first + place) * STEP_SIZE
        i, f, null = apply_step(CHAINS[NUMBER][place], (i, f, null), position, row, mask, step, memory)
    return i, f, null


@triton.jit
def apply_step(CODE: tl.constexpr, element, position, row, mask, step, memory):
    """The element after one step. `position`: in its list; `row`: in the batch; `mask`: elements that exist."""
    _steps, ints, floats, pointers, num_slots, counters = memory
    i, f, null = element
    if CODE == FILL_INT:
        i = fill_int(i, null, step)
        null = null & False
    if CODE == FILL_FLOAT:
        f = fill_float(f, null, step)
        null = null & False
    if CODE == BUCKETIZE:
        i = bucketize(f, floats + tl.load(step + 4), tl.load(step + 1), tl.load(step + 2), tl.load(step + 3))
        if tl.load(step + 5) != 0:
            num_nan = tl.sum((mask & (null == 0) & flag(f != f)).to(tl.int32), 0)
            if num_nan > 0:
                tl.atomic_add(counters, num_nan.to(tl.int64))
    if CODE == BUCKETIZE_INT:
        i = bucketize_int(i, ints + tl.load(step + 4), tl.load(step + 1), tl.load(step + 2), tl.load(step + 3))
    if CODE == MAP_ID:
        i = map_id(i, step, ints)
    if CODE == ONEHOT:
        i = onehot(f, position, step)
        f = i.to(f.dtype)
    if CODE == ENUMERATE:
        i = position.to(tl.int64)
    if CODE == LOCAL_HOUR_COLUMN:
        slot = tl.load(step + 1)
        offset, _ = load_element(tl.load(pointers + slot), tl.load(step + 2), row, mask, tl.float32)
        null = null | (null_flags(pointers, num_slots, slot, row, mask) != 0)
        i = local_hour(i, offset)
    if CODE == TO_FLOAT:
        f = i.to(tl.float32).to(f.dtype)
    return of_integer(CODE, i, step), of_float(CODE, f, step), null


@triton.jit
def of_integer(CODE: tl.constexpr, i, step):
    """An integer after a function of it and of parameters alone."""
    if CODE == SIGRID_HASH:
        i = sigrid_hash(i, step)
    if CODE == SIGRID_HASH_WIDE:
        i = sigrid_hash_wide(i, step)
    if CODE == POSITIVE_MODULUS:
        i = floor_mod(i, step, 1)
    if CODE == POSITIVE_MODULUS_WIDE:
        i = wide_floor_mod(i, step, 1)
    if CODE == LOW_BITS:
        i = low_bits(i, step)
    if CODE == CLAMP_INT:
        i = clamp_int(i, step)
    if CODE == LOCAL_HOUR:
        i = local_hour(i, tl.load(step + 1))
    if CODE == CONSTANT:
        i = tl.load(step + 1) + tl.zeros_like(i)
    if CODE == IN_RANGE:
        i = tl.where((i >= 0) & (i < tl.load(step + 1)), i, 0)
    return i


@triton.jit
def of_float(CODE: tl.constexpr, f, step):
    """A float after a function of it and of parameters alone."""
    if CODE == CLAMP_FLOAT:
        f = clamp_float(f, step)
    if CODE == LOGIT:
        f = logit(f, step)
    if CODE == BOXCOX:
        f = boxcox(f, step)
    if CODE == BOXCOX_LOG:
        f = boxcox_log(f)
    if CODE == LOG:
        f = log(f, step)
    if CODE == LOG1P:
        f = log1p(f, step)
    if CODE == AFFINE:
        f = affine(f, step)
    return f
