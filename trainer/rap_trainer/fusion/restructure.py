# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""A stage's change of structure: where an element of a result comes from, and what it is made of."""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import limited, operand_length, source_index
from rap_trainer.fusion.operands import STRUCTURES_AT, load_source, stepped
from rap_trainer.fusion.ops.codes import holds
from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64
from rap_trainer.fusion.words import (
    CARTESIAN,
    LIST_BEFORE,
    LIST_OPERAND,
    LIST_OTHER,
    LIST_PARAMETER,
    LIST_STRUCTURE,
    NGRAM,
    ONEHOT_LIST,
    WINDOWS,
)


@triton.jit
def restructured(
    entry, sources, keeps, row, position, element, mask, memory, lists, CHAINS: tl.constexpr, FORM: tl.constexpr
):
    """(i, f, weight) of a tile of a result; `keeps`: each element comes from the same place.

    `sources`: of the operand and of cartesian's other one. `lists`: (offsets, counts, chosen).
    """
    at = position
    window = tl.full(element.shape, 1, tl.int32)
    other_at = tl.zeros(element.shape, tl.int32)
    source = element
    if keeps == 0:
        at, window, other_at = positions(
            entry, row, position, mask, memory[3], memory[4], lists[1], FORM[STRUCTURES_AT]
        )
        source = source_index(entry + LIST_OPERAND, row, at, mask, lists[0], lists[1], lists[2])
    i, f, null, weight = load_source(sources[0], row, source, mask, memory, lists[1], entry, FORM)
    i, f, null = stepped(entry, 0, (i, f, null), at, row, mask, memory, CHAINS)
    if holds(FORM[STRUCTURES_AT], CARTESIAN):
        if tl.load(entry + LIST_STRUCTURE) == CARTESIAN:
            i, weight = paired(entry, sources[1], i, weight, row, other_at, mask, memory, lists, FORM)
    if holds(FORM[STRUCTURES_AT], WINDOWS):
        if tl.load(entry + LIST_STRUCTURE) == WINDOWS:
            i, weight = windowed(entry, sources[0], i, weight, row, at, window, mask, memory, lists, CHAINS, FORM)
    i, f, null = stepped(entry, 1, (i, f, null), position, row, mask, memory, CHAINS)
    return i, f, weight


@triton.jit
def paired(entry, source, i, weight, row, at, mask, memory, lists, FORM: tl.constexpr):
    """cartesian: (hash, weight) of elements with those of the other list at positions `at`."""
    index = source_index(entry + LIST_OTHER, row, at, mask, lists[0], lists[1], lists[2])
    theirs, _f, _null, their_weight = load_source(source, row, index, mask, memory, lists[1], entry, FORM)
    return hash_128_to_64(i, theirs), weight * their_weight


@triton.jit
def windowed(entry, source, i, weight, row, at, window, mask, memory, lists, CHAINS: tl.constexpr, FORM: tl.constexpr):
    """ngram, hashed: (hash, weight) of windows that begin at positions `at`."""
    k = 1
    size = tl.load(entry + LIST_PARAMETER)
    while k < size:
        more = mask & (k < window)
        index = source_index(entry + LIST_OPERAND, row, at + k, more, lists[0], lists[1], lists[2])
        i2, f2, null2, weight2 = load_source(source, row, index, more, memory, lists[1], entry, FORM)
        counted = mask & (row < 0)  # none: the first window that holds an element has counted it
        i2, f2, null2 = stepped(entry, 0, (i2, f2, null2), at + k, row, counted, memory, CHAINS)
        i = tl.where(more, hash_128_to_64(i, i2), i)
        weight = tl.where(more, weight * weight2, weight)
        k += 1
    return i, weight


@triton.jit
def positions(entry, row, position, mask, pointers, num_slots, counts, STRUCTURES: tl.constexpr):
    """Where a result's element comes from: (position in the source list, window, position in the other list)."""
    source = position
    window = tl.full(position.shape, 1, tl.int32)
    other = tl.zeros(position.shape, tl.int32)
    structure = tl.load(entry + LIST_STRUCTURE)
    parameter = tl.load(entry + LIST_PARAMETER)
    if holds(STRUCTURES, NGRAM):
        if structure == NGRAM:
            window = _window(entry, row, mask, parameter, pointers, num_slots, counts)
            number = quotient(position, window)
            source = number + (position - number * window)
    if holds(STRUCTURES, WINDOWS):
        if structure == WINDOWS:
            window = _window(entry, row, mask, parameter, pointers, num_slots, counts)
    if holds(STRUCTURES, ONEHOT_LIST):
        if structure == ONEHOT_LIST:
            source = quotient(position, parameter.to(tl.int32))
    if holds(STRUCTURES, CARTESIAN):
        if structure == CARTESIAN:
            length = operand_length(entry + LIST_OTHER, row, mask, pointers, num_slots, counts)
            length = tl.maximum(length, 1)
            source = quotient(position, length)
            other = position - source * length
    return source, window, other


@triton.jit
def _window(entry, row, mask, parameter, pointers, num_slots, counts):
    length = operand_length(entry + LIST_OPERAND, row, mask, pointers, num_slots, counts)
    length = limited(length, tl.load(entry + LIST_BEFORE))
    return tl.maximum(limited(length, parameter), 1)


@triton.jit
def quotient(x, divisor):
    """int32, of numbers that are not negative: unsigned, which takes fewer instructions."""
    divisor = divisor + tl.zeros_like(x)
    return (x.to(tl.uint32, bitcast=True) // divisor.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
