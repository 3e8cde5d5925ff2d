# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""What the kernels of lists share: lengths of operands and of results, the row and source of an element.

R rows or elements of a tile. A null row has length -1 until it is written to the outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.codes import holds
from rap_trainer.fusion.words import (
    CARTESIAN,
    FILL_ROWS,
    LIST_AFTER,
    LIST_BEFORE,
    LIST_OPERAND,
    LIST_OTHER,
    LIST_PARAMETER,
    LIST_STRUCTURE,
    NGRAM,
    NULL_ROWS,
    ONEHOT_LIST,
    OPERAND_CHOSEN,
    OPERAND_COUNTS,
    OPERAND_IS_LIST,
    OPERAND_OFFSETS,
    OPERAND_SLOT,
    OPERAND_STARTS,
    WINDOWS,
)

UNLIMITED = tl.constexpr(2**31 - 1)
PAST = tl.constexpr(2**31 - 1)
"""A place past all elements."""


@triton.jit
def raw_length(operand, row, mask, pointers, num_slots):
    """int32 [R]: elements of a slot's list, before any selection; 1 of a number."""
    length = tl.full(row.shape, 1, tl.int32)
    if tl.load(operand + OPERAND_IS_LIST) != 0:
        address = tl.load(pointers + 2 * num_slots + tl.load(operand + OPERAND_SLOT))
        length = tl.load(address.to(tl.pointer_type(tl.int32)) + row, mask=mask, other=0)
    return length


@triton.jit
def operand_length(operand, row, mask, pointers, num_slots, counts):
    """int32 [R]: elements of an operand's list, -1 for a null row."""
    selected = tl.load(operand + OPERAND_COUNTS)
    length = tl.zeros(row.shape, tl.int32)
    if selected >= 0:
        length = tl.load(counts + selected + row, mask=mask, other=0)
    else:
        length = raw_length(operand, row, mask, pointers, num_slots)
    return length


@triton.jit
def rows_with_elements(own, filled, first_row, num_rows, ROWS: tl.constexpr, LANES: tl.constexpr):
    """(row, where its elements begin), int32 [LANES] both, of each row of a group that has elements, one after the other; the rest begin past all elements.

    `own`: where the elements of all rows begin; `filled`: the same rows, as noted for each group. LANES beyond ROWS hold the same again.
    """
    lane = tl.arange(0, LANES)
    row = first_row + lane % ROWS
    begins = tl.load(own + row, mask=row < num_rows, other=0)
    has = (tl.load(own + row + 1, mask=row < num_rows, other=0) > begins) & (lane < ROWS)
    exists = lane % ROWS < tl.sum(has.to(tl.int32), 0)
    row = tl.load(filled + row, mask=exists, other=0)
    return row, tl.load(own + row, mask=exists, other=PAST)


@triton.jit
def source_index(operand, row, position, mask, offsets, counts, chosen):
    """int32 [R]: where element `position` of a row's operand list lies in its slot. A negative start: -1 - where the row's list begins."""
    index = row + position
    selection = tl.load(operand + OPERAND_CHOSEN)
    if selection >= 0:
        start = tl.load(counts + tl.load(operand + OPERAND_STARTS) + row, mask=mask, other=0)
        index = tl.load(chosen + selection + start + position, mask=mask & (start >= 0), other=0)
        index = tl.where(start < 0, position - 1 - start, index)
    else:
        begins = tl.load(operand + OPERAND_OFFSETS)
        if begins >= 0:
            index = tl.load(offsets + begins + row, mask=mask, other=0) + position
    return index


@triton.jit
def limited(length, limit):
    """A null row stays null; any other keeps at most `limit` elements."""
    return tl.minimum(length.to(tl.int64), limit).to(tl.int32)


@triton.jit
def result_length(entry, row, mask, pointers, num_slots, counts, STRUCTURES: tl.constexpr):
    """int32 [R]: elements of the list a table row describes, -1 for a null row."""
    length = operand_length(entry + LIST_OPERAND, row, mask, pointers, num_slots, counts)
    length = limited(length, tl.load(entry + LIST_BEFORE))
    structure = tl.load(entry + LIST_STRUCTURE)
    parameter = tl.load(entry + LIST_PARAMETER)
    if holds(STRUCTURES, NGRAM):
        if structure == NGRAM:
            window = limited(length, parameter)
            length = tl.where(length > 0, (length - window + 1) * window, length)
    if holds(STRUCTURES, WINDOWS):
        if structure == WINDOWS:
            length = tl.where(length > 0, length - limited(length, parameter) + 1, length)
    if holds(STRUCTURES, ONEHOT_LIST):
        if structure == ONEHOT_LIST:
            length = tl.where(length > 0, length * parameter.to(tl.int32), length)
    if holds(STRUCTURES, CARTESIAN):
        if structure == CARTESIAN:
            other = operand_length(entry + LIST_OTHER, row, mask, pointers, num_slots, counts)
            pairs = tl.minimum(length.to(tl.int64) * other, parameter).to(tl.int32)
            length = tl.where((length < 0) | (other < 0), -1, pairs)
    if holds(STRUCTURES, FILL_ROWS):
        if structure == FILL_ROWS:
            length = tl.where(length < 0, 1, length)
    if holds(STRUCTURES, NULL_ROWS):
        if structure == NULL_ROWS:
            flags = tl.load(pointers + num_slots + tl.load(entry + LIST_OTHER + OPERAND_SLOT))
            if flags != 0:
                flag = tl.load(flags.to(tl.pointer_type(tl.int8)) + row, mask=mask, other=0)
                length = tl.where(flag != 0, -1, length)
    return limited(length, tl.load(entry + LIST_AFTER))
