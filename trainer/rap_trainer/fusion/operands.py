# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Elements of operands read, put through chains, and written where results go.

FORM, of a launch, is what its kernel is compiled for beside chains: bits of the types that its sources hold, of where its results are written, of its structures;
whether there are weights; the type of floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import operand_length
from rap_trainer.fusion.ops.apply import apply_chain
from rap_trainer.fusion.ops.codes import holds, only
from rap_trainer.fusion.ops.elements import load_element, load_flags, store_scratch
from rap_trainer.fusion.words import (
    FILL_ROWS,
    KIND_IDS,
    LIST_CHAINS,
    LIST_KIND,
    LIST_POST,
    LIST_PRE,
    LIST_STRUCTURE,
    LIST_TARGET,
    LIST_WEIGHTS,
    OPERAND_DTYPE,
    OPERAND_SLOT,
    OPERAND_WEIGHTS,
)

DTYPES_AT, KINDS_AT, STRUCTURES_AT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
WEIGHTED_AT, FLOAT_AT = tl.constexpr(3), tl.constexpr(4)
"""Places in a FORM."""


@triton.jit
def stepped(entry, PART: tl.constexpr, values, position, row, mask, memory, CHAINS: tl.constexpr):
    """(i, f, null) of `values` after the stage's steps before its structure (PART 0) or after it (1)."""
    chain = tl.load(entry + LIST_CHAINS + PART)
    first = tl.load(entry + (LIST_PRE if PART == 0 else LIST_POST))
    return apply_chain(chain, first, values, position, row, mask, memory, CHAINS)


@triton.jit
def source_of(operand, memory, FORM: tl.constexpr):
    """(operand, type, addresses of values, null flags, weights, null flags of weights), 0 where there are none: found once, for all tiles."""
    pointers, num_slots = memory[3], memory[4]
    slot = tl.load(operand + OPERAND_SLOT)
    values, nulls = tl.load(pointers + slot), tl.load(pointers + num_slots + slot)
    weights, weight_nulls = tl.zeros_like(values), tl.zeros_like(values)
    if FORM[WEIGHTED_AT]:
        slot = tl.load(operand + OPERAND_WEIGHTS)
        if slot >= 0:
            weights, weight_nulls = tl.load(pointers + slot), tl.load(pointers + num_slots + slot)
    return operand, tl.load(operand + OPERAND_DTYPE), values, nulls, weights, weight_nulls


@triton.jit
def load_source(source, row, index, mask, memory, counts, entry, FORM: tl.constexpr):
    """(i, f, null, weight) of elements of a source; a null row that is about to be filled has no element to read."""
    operand, dtype, values, nulls, weights, weight_nulls = source
    null = index < 0
    exists = mask
    if holds(FORM[STRUCTURES_AT], FILL_ROWS):
        if tl.load(entry + LIST_STRUCTURE) == FILL_ROWS:
            null = operand_length(operand, row, mask, memory[3], memory[4], counts) < 0
            exists = mask & (null == 0)
    if only(FORM[DTYPES_AT]) >= 0:
        i, f = load_element(values, only(FORM[DTYPES_AT]), index, exists, FORM[FLOAT_AT])
    else:
        i, f = load_element(values, dtype, index, exists, FORM[FLOAT_AT])
    null = null | (load_flags(nulls, index, exists) != 0)
    weight = tl.full(index.shape, 1.0, tl.float32)
    if FORM[WEIGHTED_AT]:
        if weights != 0:
            weight = tl.load(weights.to(tl.pointer_type(tl.float32)) + index, mask=exists, other=1.0)
            weight = tl.where(load_flags(weight_nulls, index, exists) != 0, 1.0, weight)
    return i, f, null, weight


@triton.jit
def target_of(entry, memory, bases, FORM: tl.constexpr):
    """(kind, where elements begin among the outputs or the address of scratch, address of scratch weights or 0): found once, for all tiles."""
    pointers = memory[3]
    kind = tl.load(entry + LIST_KIND)
    target = tl.load(entry + LIST_TARGET)
    place, weights = target, tl.zeros_like(target)
    if kind == KIND_IDS:
        place = tl.load(bases + target)
    else:
        place = tl.load(pointers + target)
        if FORM[WEIGHTED_AT]:
            slot = tl.load(entry + LIST_WEIGHTS)
            if slot >= 0:
                weights = tl.load(pointers + slot)
    return kind, place, weights


@triton.jit
def store_elements(target, i, f, weight, element, mask, outputs, FORM: tl.constexpr):
    """Writes a tile of a result: into the outputs (ids, weights, number of ids), or into scratch."""
    ids, weights, num_ids = outputs
    kind, place, into = target
    if only(FORM[KINDS_AT]) >= 0:
        kind = only(FORM[KINDS_AT])
    if kind == KIND_IDS:
        at = place + element
        there = mask & (at < num_ids)
        tl.store(ids + at, i.to(ids.dtype.element_ty), mask=there)
        if FORM[WEIGHTED_AT]:
            tl.store(weights + at, weight, mask=there)
    else:
        store_scratch(kind, place, i, f, element, mask)
        if FORM[WEIGHTED_AT]:
            if into != 0:
                tl.store(into.to(tl.pointer_type(tl.float32)) + element, weight, mask=mask)
