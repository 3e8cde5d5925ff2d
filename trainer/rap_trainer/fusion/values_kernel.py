# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Second pass over lists: every element of every result, one read, a whole chain in registers, one write.

Program p takes tiles p, p + programs, ... of all stages' results; the tiles were numbered on the device, so the
work is balanced whatever the lists' lengths, and no element is counted on the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import limited, operand_length, row_of, source_index
from rap_trainer.fusion.ops.apply import apply_chain
from rap_trainer.fusion.ops.codes import holds
from rap_trainer.fusion.ops.elements import load_element, null_flags, store_scratch
from rap_trainer.fusion.ops.sigrid_hash import hash_128_to_64
from rap_trainer.fusion.words import (
    CARTESIAN,
    FILL_ROWS,
    KIND_IDS,
    LIST_BEFORE,
    LIST_CAPACITY,
    LIST_CHAINS,
    LIST_KEEPS,
    LIST_KIND,
    LIST_LANDMARKS,
    LIST_OFFSETS,
    LIST_OPERAND,
    LIST_OTHER,
    LIST_PARAMETER,
    LIST_POST,
    LIST_PRE,
    LIST_STRUCTURE,
    LIST_TARGET,
    LIST_WEIGHTS,
    LIST_WORDS,
    NGRAM,
    ONEHOT_LIST,
    OPERAND_DTYPE,
    OPERAND_SLOT,
    OPERAND_WEIGHTS,
    WINDOWS,
)


@triton.jit(do_not_specialize=["first", "num_stages", "num_slots", "num_rows", "num_ids"])
def values_kernel(
    entries,
    totals,
    first,
    num_stages,
    tiles,
    steps,
    ints,
    floats,
    pointers,
    num_slots,
    counts,
    offsets,
    chosen,
    landmarks,
    bases,
    ids,
    weights,
    counters,
    num_rows,
    num_ids,
    CHAINS: tl.constexpr,
    STRUCTURES: tl.constexpr,
    GENERAL: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FLOAT: tl.constexpr,
    TILE: tl.constexpr,
):
    """Stages are entries [first, first + num_stages); `tiles` holds the number of each one's first tile, and one more.

    GENERAL: some stage does not keep positions.
    """
    memory = (steps, ints, floats, pointers, num_slots, counters)
    lists = (offsets, counts, chosen)
    num_tiles = tl.load(tiles + num_stages)
    tile = tl.load(tiles) + tl.program_id(0)
    while tile < num_tiles:
        stage = stage_of(tiles, num_stages, tile)
        entry = entries + (first + stage) * LIST_WORDS
        place = (tile - tl.load(tiles + stage)).to(tl.int32)
        total = tl.minimum(tl.load(totals + first + stage), tl.load(entry + LIST_CAPACITY)).to(tl.int32)
        element = place * TILE + tl.arange(0, TILE)
        mask = element < total
        i, f, weight = stage_values(
            entry, element, mask, landmarks, memory, lists, CHAINS, STRUCTURES, GENERAL, WEIGHTED, FLOAT
        )
        store_elements(entry, i, f, weight, element, mask, pointers, (bases, ids, weights, num_ids), WEIGHTED)
        tile += tl.num_programs(0)


@triton.jit
def stage_of(tiles, num_stages, tile):
    """The stage whose tiles hold this one, by bisection."""
    low = 0
    high = num_stages
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(tiles + middle) <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def stage_values(
    entry,
    element,
    mask,
    landmarks,
    memory,
    lists,
    CHAINS: tl.constexpr,
    STRUCTURES: tl.constexpr,
    GENERAL: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """(i, f, weight) of a tile of a result. `lists`: (offsets, counts, chosen)."""
    row = tl.zeros(element.shape, tl.int32)
    position = tl.zeros(element.shape, tl.int32)
    at = tl.zeros(element.shape, tl.int32)
    window = tl.full(element.shape, 1, tl.int32)
    other_at = tl.zeros(element.shape, tl.int32)
    source = element
    if GENERAL:
        if tl.load(entry + LIST_KEEPS) == 0:
            own = lists[0] + tl.load(entry + LIST_OFFSETS)
            row = row_of(own, landmarks + tl.load(entry + LIST_LANDMARKS), element, mask)
            position = element - tl.load(own + row, mask=mask, other=0)
            at, window, other_at = positions(entry, row, position, mask, memory[3], memory[4], lists[1], STRUCTURES)
            source = source_index(entry + LIST_OPERAND, row, at, mask, lists[0], lists[1], lists[2])
    i, f, null, weight = load_operand(
        entry + LIST_OPERAND, row, source, mask, memory, lists[1], STRUCTURES, entry, WEIGHTED, FLOAT
    )
    chain, first = tl.load(entry + LIST_CHAINS), tl.load(entry + LIST_PRE)
    i, f, null = apply_chain(chain, first, (i, f, null), at, row, mask, memory, CHAINS)
    if holds(STRUCTURES, CARTESIAN):
        if tl.load(entry + LIST_STRUCTURE) == CARTESIAN:
            i, weight = paired(entry, i, weight, row, other_at, mask, memory, lists, WEIGHTED, FLOAT)
    if holds(STRUCTURES, WINDOWS):
        if tl.load(entry + LIST_STRUCTURE) == WINDOWS:
            i, weight = windowed(
                entry, i, weight, row, at, window, mask, memory, lists, CHAINS, STRUCTURES, WEIGHTED, FLOAT
            )
    chain, first = tl.load(entry + LIST_CHAINS + 1), tl.load(entry + LIST_POST)
    i, f, null = apply_chain(chain, first, (i, f, null), position, row, mask, memory, CHAINS)
    return i, f, weight


@triton.jit
def paired(entry, i, weight, row, at, mask, memory, lists, WEIGHTED: tl.constexpr, FLOAT: tl.constexpr):
    """cartesian: (hash, weight) of elements with those of the other list at positions `at`."""
    other = entry + LIST_OTHER
    source = source_index(other, row, at, mask, lists[0], lists[1], lists[2])
    theirs, _f, _null, their_weight = load_operand(
        other, row, source, mask, memory, lists[1], 0, entry, WEIGHTED, FLOAT
    )
    return hash_128_to_64(i, theirs), weight * their_weight


@triton.jit
def windowed(
    entry,
    i,
    weight,
    row,
    at,
    window,
    mask,
    memory,
    lists,
    CHAINS: tl.constexpr,
    STRUCTURES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """ngram, hashed: (hash, weight) of windows that begin at positions `at`."""
    k = 1
    size = tl.load(entry + LIST_PARAMETER)
    while k < size:
        more = mask & (k < window)
        source = source_index(entry + LIST_OPERAND, row, at + k, more, lists[0], lists[1], lists[2])
        i2, f2, null2, weight2 = load_operand(
            entry + LIST_OPERAND, row, source, more, memory, lists[1], STRUCTURES, entry, WEIGHTED, FLOAT
        )
        chain, first = tl.load(entry + LIST_CHAINS), tl.load(entry + LIST_PRE)
        counted = mask & (row < 0)  # none: the first window that holds an element has counted it
        i2, f2, null2 = apply_chain(chain, first, (i2, f2, null2), at + k, row, counted, memory, CHAINS)
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
            number = position // window
            source = number + (position - number * window)
    if holds(STRUCTURES, WINDOWS):
        if structure == WINDOWS:
            window = _window(entry, row, mask, parameter, pointers, num_slots, counts)
    if holds(STRUCTURES, ONEHOT_LIST):
        if structure == ONEHOT_LIST:
            source = position // parameter.to(tl.int32)
    if holds(STRUCTURES, CARTESIAN):
        if structure == CARTESIAN:
            length = operand_length(entry + LIST_OTHER, row, mask, pointers, num_slots, counts)
            length = tl.maximum(length, 1)
            source = position // length
            other = position - source * length
    return source, window, other


@triton.jit
def _window(entry, row, mask, parameter, pointers, num_slots, counts):
    length = operand_length(entry + LIST_OPERAND, row, mask, pointers, num_slots, counts)
    length = limited(length, tl.load(entry + LIST_BEFORE))
    return tl.maximum(limited(length, parameter), 1)


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
