# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Comparisons of two lists of ids, one number a row. Lists are short: every pair of a row is compared.

A program of one warp takes a row. A lane holds one element of the first list and meets a chunk of the other list at
once: pairs lie in one thread, so counts are sums in registers, without shuffles and without a branch between pairs.
For an element: count = equal ids in its own list, rank = those before it, found = equal ids in the other list. overlap =
number of elements with rank < found; sums over distinct ids take elements of rank 0. All results of one kind over the
same lists come from the same passes.

C elements of a chunk (CHUNK), W elements of the first list at a time (WIDTH).
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import operand_length
from rap_trainer.fusion.ops.elements import flag, load_element
from rap_trainer.fusion.words import (
    COMPARED_IDS,
    COMPARED_SCORES,
    COMPARISON_KIND,
    COMPARISON_SLOTS,
    COMPARISON_WORDS,
    OPERAND_CHOSEN,
    OPERAND_DTYPE,
    OPERAND_OFFSETS,
    OPERAND_SLOT,
    OPERAND_STARTS,
    OPERAND_WORDS,
)


@triton.jit(do_not_specialize=["first", "end", "num_slots", "num_rows"])
def compare_kernel(
    first,
    end,
    comparisons,
    pointers,
    num_slots,
    offsets,
    counts,
    chosen,
    num_rows,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Comparisons [first, end) x rows."""
    item = tl.program_id(0)
    while item < (end - first) * num_rows:
        a = comparisons + (first + item // num_rows) * COMPARISON_WORDS
        b = a + OPERAND_WORDS
        row = item % num_rows
        kind = tl.load(a + COMPARISON_KIND)
        length_a = operand_length(a, row, True, pointers, num_slots, counts)
        length_b = operand_length(b, row, True, pointers, num_slots, counts)
        null = (length_a < 0) | (length_b < 0)
        length_a = tl.where(null, 0, length_a)
        length_b = tl.where(null, 0, length_b)
        slots = a + COMPARISON_SLOTS
        if kind == COMPARED_IDS:
            over_ids(
                slots, null, a, b, row, length_a, length_b, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH
            )
        elif kind == COMPARED_SCORES:
            over_scores(
                slots, null, a, b, row, length_a, length_b, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH
            )
        else:
            over_sums(
                slots, null, a, b, row, length_a, length_b, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH
            )
        item += tl.num_programs(0)


@triton.jit
def store_result(slot_address, result, null, row, pointers, num_slots):
    """A number of a row into scratch, if it is wanted."""
    slot = tl.load(slot_address)
    if slot >= 0:
        value = tl.load(pointers + slot).to(tl.pointer_type(tl.float32))
        tl.store(value + row, result.to(tl.float32))
        flags = tl.load(pointers + num_slots + slot).to(tl.pointer_type(tl.int8))
        tl.store(flags + row, null.to(tl.int8))


@triton.jit
def locate(operand, row, pointers, offsets, counts):
    """(address, type, place of the row's first element, where picked elements begin or -1)."""
    address = tl.load(pointers + tl.load(operand + OPERAND_SLOT))
    picks = tl.load(operand + OPERAND_CHOSEN)
    first = row
    if picks >= 0:
        first = tl.load(counts + tl.load(operand + OPERAND_STARTS) + row)
    else:
        begins = tl.load(operand + OPERAND_OFFSETS)
        if begins >= 0:
            first = tl.load(offsets + begins + row)
    return address, tl.load(operand + OPERAND_DTYPE), first, picks


@triton.jit
def place_of(first, picks, at, exists, chosen):
    """int32: where elements lie in their slot."""
    index = first + at
    if picks >= 0:
        index = tl.load(chosen + picks + index, mask=exists, other=0)
    return index


@triton.jit
def load_ids(address, dtype, index, exists):
    """int64 ids."""
    ids, _unused = load_element(address, dtype, index, exists, tl.float32)
    return ids


@triton.jit
def load_scores(address, index, exists):
    """float64 scores; 0 where there is none."""
    return tl.load(address.to(tl.pointer_type(tl.float32)) + index, mask=exists, other=0.0).to(tl.float64)


@triton.jit
def found_in(
    operand, ids, at, row, length, pointers, offsets, counts, chosen, CHUNK: tl.constexpr, WIDTH: tl.constexpr
):
    """int32 [W], twice: for each id, equal ids in a list of its row, and those of them at smaller positions."""
    count = tl.zeros([WIDTH], tl.int32)
    rank = tl.zeros([WIDTH], tl.int32)
    address, dtype, first, picks = locate(operand, row, pointers, offsets, counts)
    begin = 0
    while begin < length:
        place = begin + tl.arange(0, CHUNK)
        exists = place < length
        theirs = load_ids(address, dtype, place_of(first, picks, place, exists, chosen), exists)
        equal = exists[:, None] & (theirs[:, None] == ids[None, :])
        count += tl.sum(equal.to(tl.int32), 0)
        rank += tl.sum((equal & (place[:, None] < at[None, :])).to(tl.int32), 0)
        begin += CHUNK
    return count, rank


@triton.jit
def summed_in(
    operand,
    ids,
    at,
    row,
    length,
    pointers,
    num_slots,
    offsets,
    counts,
    chosen,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """[W]: for each id, (float64 sum of the scores of equal ids, int32 number of those at smaller positions).

    Scores are two operands further on.
    """
    score = tl.zeros([WIDTH], tl.float64)
    rank = tl.zeros([WIDTH], tl.int32)
    address, dtype, first, picks = locate(operand, row, pointers, offsets, counts)
    scores, _no_dtype, first_s, picks_s = locate(operand + 2 * OPERAND_WORDS, row, pointers, offsets, counts)
    length_s = operand_length(operand + 2 * OPERAND_WORDS, row, True, pointers, num_slots, counts)
    begin = 0
    while begin < length:
        place = begin + tl.arange(0, CHUNK)
        exists = place < length
        theirs = load_ids(address, dtype, place_of(first, picks, place, exists, chosen), exists)
        scored = exists & (place < length_s)
        weight = load_scores(scores, place_of(first_s, picks_s, place, scored, chosen), scored)
        equal = exists[:, None] & (theirs[:, None] == ids[None, :])
        score += tl.sum(tl.where(equal, weight[:, None], 0.0), 0)
        rank += tl.sum((equal & (place[:, None] < at[None, :])).to(tl.int32), 0)
        begin += CHUNK
    return score, rank


@triton.jit
def over_ids(
    slots,
    null,
    a,
    b,
    row,
    length_a,
    length_b,
    pointers,
    num_slots,
    offsets,
    counts,
    chosen,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """has_id_overlap, id_overlap_count, get_max_count, jaccard."""
    any_found = tl.zeros([], tl.int32)
    overlap = tl.zeros([], tl.int32)
    most = tl.zeros([], tl.int32)
    ranks = (tl.load(slots + 1) >= 0) | (tl.load(slots + 2) >= 0) | (tl.load(slots + 3) >= 0)
    address, dtype, first, picks = locate(a, row, pointers, offsets, counts)
    begin = 0
    while begin < length_a:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length_a
        ids = load_ids(address, dtype, place_of(first, picks, at, exists, chosen), exists)
        found, _unused = found_in(b, ids, at, row, length_b, pointers, offsets, counts, chosen, CHUNK, WIDTH)
        any_found += tl.sum((exists & (found > 0)).to(tl.int32), 0)
        if ranks:
            count, rank = found_in(a, ids, at, row, length_a, pointers, offsets, counts, chosen, CHUNK, WIDTH)
            overlap += tl.sum((exists & (rank < found)).to(tl.int32), 0)
            most += tl.sum(tl.where(exists & (rank == 0) & (found > 0), tl.maximum(count, found), 0), 0)
        begin += WIDTH
    union = (length_a + length_b - overlap).to(tl.float64)
    store_result(slots, (any_found > 0).to(tl.float32), null, row, pointers, num_slots)
    store_result(slots + 1, overlap, null, row, pointers, num_slots)
    store_result(slots + 2, most, null, row, pointers, num_slots)
    store_result(slots + 3, overlap.to(tl.float64) / union, null, row, pointers, num_slots)


@triton.jit
def over_sums(
    slots,
    null,
    a,
    b,
    row,
    length_a,
    length_b,
    pointers,
    num_slots,
    offsets,
    counts,
    chosen,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """cosine, of the scores summed for each id."""
    dot = tl.zeros([], tl.float64)
    norm_a = tl.zeros([], tl.float64)
    address, dtype, first, picks = locate(a, row, pointers, offsets, counts)
    begin = 0
    while begin < length_a:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length_a
        ids = load_ids(address, dtype, place_of(first, picks, at, exists, chosen), exists)
        score_a, rank = summed_in(a, ids, at, row, length_a, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH)
        score_b, _unused = summed_in(
            b, ids, at, row, length_b, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH
        )
        distinct = exists & (rank == 0)
        dot += tl.sum(tl.where(distinct, score_a * score_b, 0.0), 0)
        norm_a += tl.sum(tl.where(distinct, score_a * score_a, 0.0), 0)
        begin += WIDTH
    norm_b = norm_of(b, row, length_b, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH)
    norm = tl.sqrt(norm_a) * tl.sqrt(norm_b)
    result = tl.where(norm == 0, 0.0, dot / tl.where(norm == 0, 1.0, norm))
    store_result(slots, result, null, row, pointers, num_slots)


@triton.jit
def norm_of(
    operand, row, length, pointers, num_slots, offsets, counts, chosen, CHUNK: tl.constexpr, WIDTH: tl.constexpr
):
    """Sum of squares of a list's scores summed per id."""
    norm = tl.zeros([], tl.float64)
    address, dtype, first, picks = locate(operand, row, pointers, offsets, counts)
    begin = 0
    while begin < length:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length
        ids = load_ids(address, dtype, place_of(first, picks, at, exists, chosen), exists)
        score, rank = summed_in(
            operand, ids, at, row, length, pointers, num_slots, offsets, counts, chosen, CHUNK, WIDTH
        )
        norm += tl.sum(tl.where(exists & (rank == 0), score * score, 0.0), 0)
        begin += WIDTH
    return norm


@triton.jit
def over_scores(
    slots,
    null,
    a,
    b,
    row,
    length_a,
    length_b,
    pointers,
    num_slots,
    offsets,
    counts,
    chosen,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """score_sum, score_min, score_max: of those elements of the second list whose id is in the first; NaN wins."""
    total = tl.zeros([], tl.float64)
    least = tl.full([], float("inf"), tl.float64)
    most = tl.full([], float("-inf"), tl.float64)
    number = tl.zeros([], tl.int32)
    nans = tl.zeros([], tl.int32)
    address, dtype, first, picks = locate(b, row, pointers, offsets, counts)
    scores, _no_dtype, first_s, picks_s = locate(b + 2 * OPERAND_WORDS, row, pointers, offsets, counts)
    length_s = operand_length(b + 2 * OPERAND_WORDS, row, True, pointers, num_slots, counts)
    begin = 0
    while begin < length_b:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length_b
        ids = load_ids(address, dtype, place_of(first, picks, at, exists, chosen), exists)
        found, _unused = found_in(a, ids, at, row, length_a, pointers, offsets, counts, chosen, CHUNK, WIDTH)
        common = exists & (found > 0)
        scored = exists & (at < length_s)
        score = load_scores(scores, place_of(first_s, picks_s, at, scored, chosen), scored)
        number += tl.sum(common.to(tl.int32), 0)
        nans += tl.sum((common & flag(score != score)).to(tl.int32), 0)
        total += tl.sum(tl.where(common, score, 0.0), 0)
        least = tl.minimum(least, tl.min(tl.where(common, score, float("inf")), 0))
        most = tl.maximum(most, tl.max(tl.where(common, score, float("-inf")), 0))
        begin += WIDTH
    store_result(slots, total, null, row, pointers, num_slots)
    least = tl.where(nans > 0, total, tl.where(number > 0, least, 0.0))
    most = tl.where(nans > 0, total, tl.where(number > 0, most, 0.0))
    store_result(slots + 1, least, null, row, pointers, num_slots)
    store_result(slots + 2, most, null, row, pointers, num_slots)
