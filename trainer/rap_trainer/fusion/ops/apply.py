# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""One step applied to a tile of elements: the branch every fused kernel takes for each op of a chain.

An element is (i, f, null): int64, float and null flag in registers; a chain uses whichever its types
name. The step's code is uniform over the tile, so a branch costs a compare and never diverges; functions
outside OPS are not compiled. No op itself.
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
    holds,
)
from rap_trainer.fusion.ops.elements import flag, load_element
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
from rap_trainer.fusion.ops.step import floor_mod, wide_floor_mod


@triton.jit
def apply_step(
    i,
    f,
    null,
    position,
    row,
    mask,
    step,
    ints,
    floats,
    pointers,
    num_slots,
    counters,
    OPS: tl.constexpr,
):
    """The element after one step. `position`: in its list; `row`: in the batch; `mask`: elements that exist."""
    code = tl.load(step)
    if holds(OPS, FILL_INT):
        if code == FILL_INT:
            i = fill_int(i, null, step)
            null = null & False
    if holds(OPS, FILL_FLOAT):
        if code == FILL_FLOAT:
            f = fill_float(f, null, step)
            null = null & False
    if holds(OPS, SIGRID_HASH):
        if code == SIGRID_HASH:
            i = sigrid_hash(i, step)
    if holds(OPS, POSITIVE_MODULUS):
        if code == POSITIVE_MODULUS:
            i = floor_mod(i, step, 1)
    if holds(OPS, SIGRID_HASH_WIDE):
        if code == SIGRID_HASH_WIDE:
            i = sigrid_hash_wide(i, step)
    if holds(OPS, POSITIVE_MODULUS_WIDE):
        if code == POSITIVE_MODULUS_WIDE:
            i = wide_floor_mod(i, step, 1)
    if holds(OPS, LOW_BITS):
        if code == LOW_BITS:
            i = low_bits(i, step)
    if holds(OPS, CLAMP_INT):
        if code == CLAMP_INT:
            i = clamp_int(i, step)
    if holds(OPS, CLAMP_FLOAT):
        if code == CLAMP_FLOAT:
            f = clamp_float(f, step)
    if holds(OPS, BUCKETIZE):
        if code == BUCKETIZE:
            i = bucketize(f, floats + tl.load(step + 4), tl.load(step + 1), tl.load(step + 2), tl.load(step + 3))
            if tl.load(step + 5) != 0:
                num_nan = tl.sum((mask & (null == 0) & flag(f != f)).to(tl.int32), 0)
                if num_nan > 0:
                    tl.atomic_add(counters, num_nan.to(tl.int64))
    if holds(OPS, BUCKETIZE_INT):
        if code == BUCKETIZE_INT:
            i = bucketize_int(i, ints + tl.load(step + 4), tl.load(step + 1), tl.load(step + 2), tl.load(step + 3))
    if holds(OPS, LOGIT):
        if code == LOGIT:
            f = logit(f, step)
    if holds(OPS, BOXCOX):
        if code == BOXCOX:
            f = boxcox(f, step)
    if holds(OPS, BOXCOX_LOG):
        if code == BOXCOX_LOG:
            f = boxcox_log(f)
    if holds(OPS, LOG):
        if code == LOG:
            f = log(f, step)
    if holds(OPS, LOG1P):
        if code == LOG1P:
            f = log1p(f, step)
    if holds(OPS, ONEHOT):
        if code == ONEHOT:
            i = onehot(f, position, step)
            f = i.to(f.dtype)
    if holds(OPS, MAP_ID):
        if code == MAP_ID:
            i = map_id(i, step, ints)
    if holds(OPS, ENUMERATE):
        if code == ENUMERATE:
            i = position.to(tl.int64)
    if holds(OPS, LOCAL_HOUR):
        if code == LOCAL_HOUR:
            i = local_hour(i, tl.load(step + 1))
    if holds(OPS, LOCAL_HOUR_COLUMN):
        if code == LOCAL_HOUR_COLUMN:
            slot = tl.load(step + 1)
            offset, _ = load_element(tl.load(pointers + slot), tl.load(step + 2), row, mask, tl.float32)
            nulls = tl.load(pointers + num_slots + slot)
            if nulls != 0:
                offset_null = tl.load(nulls.to(tl.pointer_type(tl.int8)) + row, mask=mask, other=0)
                null = null | (offset_null != 0)
            i = local_hour(i, offset)
    if holds(OPS, AFFINE):
        if code == AFFINE:
            f = affine(f, step)
    if holds(OPS, TO_FLOAT):
        if code == TO_FLOAT:
            f = i.to(tl.float32).to(f.dtype)
    if holds(OPS, CONSTANT):
        if code == CONSTANT:
            i = tl.load(step + 1) + tl.zeros_like(i)
    if holds(OPS, IN_RANGE):
        if code == IN_RANGE:
            i = tl.where((i >= 0) & (i < tl.load(step + 1)), i, 0)
    return i, f, null
