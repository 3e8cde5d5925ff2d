# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Elements of operands read, put through chains, and written where results go."""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import operand_length
from rap_trainer.fusion.ops.apply import apply_chain
from rap_trainer.fusion.ops.codes import holds
from rap_trainer.fusion.ops.elements import load_element, null_flags, store_scratch
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


@triton.jit
def stepped(entry, PART: tl.constexpr, values, position, row, mask, memory, CHAINS: tl.constexpr):
    """(i, f, null) of `values` after the stage's steps before its structure (PART 0) or after it (1)."""
    chain = tl.load(entry + LIST_CHAINS + PART)
    first = tl.load(entry + (LIST_PRE if PART == 0 else LIST_POST))
    return apply_chain(chain, first, values, position, row, mask, memory, CHAINS)


@triton.jit
def load_operand(
    operand,
    row,
    index,
    mask,
    memory,
    counts,
    STRUCTURES: tl.constexpr,
    entry,
    WEIGHTED: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """(i, f, null, weight) of elements of an operand; a null row that is about to be filled has no element to read."""
    _steps, _ints, _floats, pointers, num_slots, _counters = memory
    slot = tl.load(operand + OPERAND_SLOT)
    null = index < 0
    exists = mask
    if holds(STRUCTURES, FILL_ROWS):
        if tl.load(entry + LIST_STRUCTURE) == FILL_ROWS:
            null = operand_length(operand, row, mask, pointers, num_slots, counts) < 0
            exists = mask & (null == 0)
    i, f = load_element(tl.load(pointers + slot), tl.load(operand + OPERAND_DTYPE), index, exists, FLOAT)
    null = null | (null_flags(pointers, num_slots, slot, index, exists) != 0)
    weight = tl.full(index.shape, 1.0, tl.float32)
    if WEIGHTED:
        slot = tl.load(operand + OPERAND_WEIGHTS)
        if slot >= 0:
            address = tl.load(pointers + slot).to(tl.pointer_type(tl.float32))
            weight = tl.load(address + index, mask=exists, other=1.0)
            weight = tl.where(null_flags(pointers, num_slots, slot, index, exists) != 0, 1.0, weight)
    return i, f, null, weight


@triton.jit
def store_elements(entry, i, f, weight, element, mask, pointers, outputs, WEIGHTED: tl.constexpr):
    """Writes a tile of a result: into the outputs (bases, ids, weights, number of ids), or into scratch."""
    bases, ids, weights, num_ids = outputs
    kind = tl.load(entry + LIST_KIND)
    target = tl.load(entry + LIST_TARGET)
    if kind == KIND_IDS:
        at = tl.load(bases + target) + element
        there = mask & (at < num_ids)
        tl.store(ids + at, i.to(ids.dtype.element_ty), mask=there)
        if WEIGHTED:
            tl.store(weights + at, weight, mask=there)
    else:
        address = tl.load(pointers + target)
        store_scratch(kind, address, i, f, element, mask)
        if WEIGHTED:
            slot = tl.load(entry + LIST_WEIGHTS)
            if slot >= 0:
                into = tl.load(pointers + slot).to(tl.pointer_type(tl.float32))
                tl.store(into + element, weight, mask=mask)
