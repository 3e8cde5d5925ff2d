# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Comparisons of two lists of ids, one number a row. Lists are short: every pair of a row is compared.

For an element of the first list: count = equal ids in its own list, rank = those before it, found = equal ids in
the other list. overlap = number of elements with rank < found; sums over distinct ids take elements of rank 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.lists import operand_length, source_index
from rap_trainer.fusion.ops.elements import flag, load_element
from rap_trainer.fusion.words import (
    COMPARISON_SLOT,
    COMPARISON_STEM,
    COMPARISON_WORDS,
    COMPARISONS,
    OPERAND_DTYPE,
    OPERAND_SLOT,
    OPERAND_WORDS,
)

HAS_ID_OVERLAP, ID_OVERLAP_COUNT, GET_MAX_COUNT, JACCARD, COSINE, SCORE_SUM, SCORE_MIN, SCORE_MAX = (
    tl.constexpr(code) for code in range(len(COMPARISONS))
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
    WIDTH: tl.constexpr,
):
    """Comparisons [first, end) x rows; a program takes rows p, p + programs, ... of all comparisons together."""
    item = tl.program_id(0)
    while item < (end - first) * num_rows:
        comparison = comparisons + (first + item // num_rows) * COMPARISON_WORDS
        row = item % num_rows
        second = comparison + OPERAND_WORDS
        stem = tl.load(comparison + COMPARISON_STEM)
        rows = row + tl.zeros([1], tl.int32)
        length_a = tl.sum(operand_length(comparison, rows, rows >= 0, pointers, num_slots, counts), 0)
        length_b = tl.sum(operand_length(second, rows, rows >= 0, pointers, num_slots, counts), 0)
        null = (length_a < 0) | (length_b < 0)
        length_a = tl.maximum(length_a, 0)
        length_b = tl.maximum(length_b, 0)
        if stem >= SCORE_SUM:
            result = over_matches(
                stem, comparison, second, row, length_a, length_b, pointers, num_slots, offsets, chosen, WIDTH
            )
        else:
            result = over_ids(
                stem, comparison, second, row, length_a, length_b, pointers, num_slots, offsets, chosen, WIDTH
            )
        slot = tl.load(comparison + COMPARISON_SLOT)
        value = tl.load(pointers + slot).to(tl.pointer_type(tl.float32))
        tl.store(value + row, result.to(tl.float32))
        flags = tl.load(pointers + num_slots + slot).to(tl.pointer_type(tl.int8))
        tl.store(flags + row, null.to(tl.int8))
        item += tl.num_programs(0)


@triton.jit
def load_ids(operand, row, at, length, pointers, num_slots, offsets, chosen):
    """int64 ids of a row's list at positions `at`."""
    index = source_index(operand, row + tl.zeros_like(at), at, at < length, offsets, chosen)
    address = tl.load(pointers + tl.load(operand + OPERAND_SLOT))
    ids, _ = load_element(address, tl.load(operand + OPERAND_DTYPE), index, at < length, tl.float32)
    return ids


@triton.jit
def load_scores(operand, row, at, length, pointers, offsets, chosen):
    """float64 scores of a row's list at positions `at`."""
    index = source_index(operand, row + tl.zeros_like(at), at, at < length, offsets, chosen)
    address = tl.load(pointers + tl.load(operand + OPERAND_SLOT)).to(tl.pointer_type(tl.float32))
    return tl.load(address + index, mask=at < length, other=0.0).to(tl.float64)


@triton.jit
def over_ids(stem, a, b, row, length_a, length_b, pointers, num_slots, offsets, chosen, WIDTH: tl.constexpr):
    """Results that sum over the ids of the first list (and, for a norm, of the second)."""
    overlap = tl.zeros([], tl.int32)
    counted = tl.zeros([], tl.int32)
    dot = tl.zeros([], tl.float64)
    norm_a = tl.zeros([], tl.float64)
    begin = 0
    while begin < length_a:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length_a
        ids = load_ids(a, row, at, length_a, pointers, num_slots, offsets, chosen)
        count, rank, score = _matches(
            stem, ids, at, a, a + 2 * OPERAND_WORDS, row, length_a, pointers, num_slots, offsets, chosen, WIDTH
        )
        found, _, score_b = _matches(
            stem, ids, at, b, a + 3 * OPERAND_WORDS, row, length_b, pointers, num_slots, offsets, chosen, WIDTH
        )
        distinct = exists & (rank == 0)
        overlap += tl.sum((exists & (rank < found)).to(tl.int32), 0)
        counted += tl.sum(tl.where(distinct & (found > 0), tl.maximum(count, found), 0), 0)
        dot += tl.sum(tl.where(distinct, score * score_b, 0.0), 0)
        norm_a += tl.sum(tl.where(distinct, score * score, 0.0), 0)
        begin += WIDTH
    result = overlap.to(tl.float64)
    if stem == HAS_ID_OVERLAP:
        result = (overlap > 0).to(tl.float64)
    elif stem == GET_MAX_COUNT:
        result = counted.to(tl.float64)
    elif stem == JACCARD:
        result = overlap.to(tl.float64) / (length_a + length_b - overlap).to(tl.float64)
    elif stem == COSINE:
        norm_b = _norm(stem, b, a + 3 * OPERAND_WORDS, row, length_b, pointers, num_slots, offsets, chosen, WIDTH)
        norm = tl.sqrt(norm_a) * tl.sqrt(norm_b)
        result = tl.where(norm == 0, 0.0, dot / tl.where(norm == 0, 1.0, norm))
    return result


@triton.jit
def _norm(stem, b, scores, row, length, pointers, num_slots, offsets, chosen, WIDTH: tl.constexpr):
    """Sum of squares of the scores summed per id."""
    norm = tl.zeros([], tl.float64)
    begin = 0
    while begin < length:
        at = begin + tl.arange(0, WIDTH)
        ids = load_ids(b, row, at, length, pointers, num_slots, offsets, chosen)
        _, rank, score = _matches(stem, ids, at, b, scores, row, length, pointers, num_slots, offsets, chosen, WIDTH)
        norm += tl.sum(tl.where((at < length) & (rank == 0), score * score, 0.0), 0)
        begin += WIDTH
    return norm


@triton.jit
def _matches(stem, ids, at, operand, scores, row, length, pointers, num_slots, offsets, chosen, WIDTH: tl.constexpr):
    """For each id: (equal ids in a list, those at smaller positions, sum of the equal ids' scores)."""
    count = tl.zeros([WIDTH], tl.int32)
    rank = tl.zeros([WIDTH], tl.int32)
    score = tl.zeros([WIDTH], tl.float64)
    begin = 0
    while begin < length:
        other = begin + tl.arange(0, WIDTH)
        theirs = load_ids(operand, row, other, length, pointers, num_slots, offsets, chosen)
        equal = (ids[:, None] == theirs[None, :]) & (other < length)[None, :]
        count += tl.sum(equal.to(tl.int32), 1)
        rank += tl.sum((equal & (other[None, :] < at[:, None])).to(tl.int32), 1)
        if stem == COSINE:
            weight = load_scores(scores, row, other, length, pointers, offsets, chosen)
            score += tl.sum(tl.where(equal, weight[None, :], 0.0), 1)
        begin += WIDTH
    return count, rank, score


@triton.jit
def over_matches(stem, a, b, row, length_a, length_b, pointers, num_slots, offsets, chosen, WIDTH: tl.constexpr):
    """Sum, least or greatest of the scores of those elements of the second list whose id is in the first; NaN wins."""
    total = tl.zeros([], tl.float64)
    least = tl.full([], float("inf"), tl.float64)
    most = tl.full([], float("-inf"), tl.float64)
    number = tl.zeros([], tl.int32)
    nans = tl.zeros([], tl.int32)
    begin = 0
    while begin < length_b:
        at = begin + tl.arange(0, WIDTH)
        ids = load_ids(b, row, at, length_b, pointers, num_slots, offsets, chosen)
        found, _, _ = _matches(stem, ids, at, a, a, row, length_a, pointers, num_slots, offsets, chosen, WIDTH)
        common = (at < length_b) & (found > 0)
        score = load_scores(a + 3 * OPERAND_WORDS, row, at, length_b, pointers, offsets, chosen)
        number += tl.sum(common.to(tl.int32), 0)
        nans += tl.sum((common & flag(score != score)).to(tl.int32), 0)
        total += tl.sum(tl.where(common, score, 0.0), 0)
        least = tl.minimum(least, tl.min(tl.where(common, score, float("inf")), 0))
        most = tl.maximum(most, tl.max(tl.where(common, score, float("-inf")), 0))
        begin += WIDTH
    result = total
    if stem != SCORE_SUM:
        extreme = tl.where(stem == SCORE_MIN, least, most)
        result = tl.where(number > 0, extreme, 0.0)
        result = tl.where(nans > 0, total, result)
    return result
