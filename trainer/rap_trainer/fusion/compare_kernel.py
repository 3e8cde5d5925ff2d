# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Comparisons of two lists of ids, one number a row. Lists are short: every pair of a row is compared.

A program of one warp takes a row. A lane holds one element of the first list and meets half a chunk of the other list at
once: pairs lie in one thread, so counts are sums in registers, without shuffles and without a branch between pairs.
For an element: count = equal ids in its own list, rank = those before it, found = equal ids in the other list. overlap =
number of elements with rank < found; the largest count is taken where rank = 0. All results of one kind over the same
lists come from the same passes. W elements of a list at a time (WIDTH).
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.bits import first_bits, num_bits
from rap_trainer.fusion.ops.elements import INT64, flag
from rap_trainer.fusion.words import (
    COMPARED_IDS,
    COMPARED_SCORES,
    COMPARISON_KIND,
    COMPARISON_SLOTS,
    COMPARISON_WORDS,
    OPERAND_CHOSEN,
    OPERAND_COUNTS,
    OPERAND_DTYPE,
    OPERAND_IS_LIST,
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
    WIDTH: tl.constexpr,
):
    """Comparisons [first, end) x rows."""
    memory = (pointers, num_slots, offsets, counts, chosen)
    item = tl.program_id(0)
    while item < (end - first) * num_rows:
        a = comparisons + (first + item // num_rows) * COMPARISON_WORDS
        row = item % num_rows
        kind = tl.load(a + COMPARISON_KIND)
        if kind == COMPARED_IDS:
            over_ids(a, row, memory, WIDTH)
        elif kind == COMPARED_SCORES:
            over_scores(a, row, memory, WIDTH)
        else:
            over_sums(a, row, memory, WIDTH)
        item += tl.num_programs(0)


@triton.jit
def store_result(slot_address, result, null, row, memory):
    """A number of a row into scratch, if it is wanted."""
    pointers, num_slots, _offsets, _counts, _chosen = memory
    slot = tl.load(slot_address)
    if slot >= 0:
        value = tl.load(pointers + slot).to(tl.pointer_type(tl.float32))
        tl.store(value + row, result.to(tl.float32))
        flags = tl.load(pointers + num_slots + slot).to(tl.pointer_type(tl.int8))
        tl.store(flags + row, null.to(tl.int8))


@triton.jit
def locate(operand, row, memory):
    """A row's list: (its length, -1 if null; address and type of the slot; place of the row's first element; where picks begin, or -1).

    All lists of a row are located before any is read, and no load waits for a branch, so that a warp waits for memory once and not once for each.
    """
    pointers, num_slots, offsets, counts, _chosen = memory
    slot, picks = tl.load(operand + OPERAND_SLOT), tl.load(operand + OPERAND_CHOSEN)
    begins, selected = tl.load(operand + OPERAND_OFFSETS), tl.load(operand + OPERAND_COUNTS)
    bare = (selected < 0) & (tl.load(operand + OPERAND_IS_LIST) != 0)
    lengths = tl.load(pointers + 2 * num_slots + slot, mask=bare, other=0)
    start = tl.load(counts + tl.load(operand + OPERAND_STARTS) + row, mask=picks >= 0, other=-1)
    first = tl.load(offsets + begins + row, mask=begins >= 0, other=row)
    length = tl.load(counts + selected + row, mask=selected >= 0, other=1)
    length = tl.load(lengths.to(tl.pointer_type(tl.int32)) + row, mask=bare, other=length)
    # a negative start: the row's picks are all its elements
    return (
        length,
        tl.load(pointers + slot),
        tl.load(operand + OPERAND_DTYPE),
        tl.where(start < 0, first, start),
        tl.where(start < 0, -1, picks),
    )


@triton.jit
def place_of(found, at, exists, memory):
    """int32: where elements of a located list lie in its slot."""
    _length, _address, _dtype, first, picks = found
    index = first + at
    if picks >= 0:
        index = tl.load(memory[4] + picks + index, mask=exists, other=0)
    return index


@triton.jit
def load_ids(found, at, exists, memory):
    """int64 ids of a located list; 0 where there is none."""
    _length, address, dtype, _first, _picks = found
    index = place_of(found, at, exists, memory)
    ids = tl.zeros(index.shape, tl.int64)
    if dtype == INT64:
        ids = tl.load(address.to(tl.pointer_type(tl.int64)) + index, mask=exists, other=0)
    else:
        ids = tl.load(address.to(tl.pointer_type(tl.int32)) + index, mask=exists, other=0).to(tl.int64)
    return ids


@triton.jit
def load_scores(found, at, exists, memory):
    """float32 scores of a located list; 0 where there is none, also where it is shorter than its ids."""
    scored = exists & (at < found[0])
    index = place_of(found, at, scored, memory)
    return tl.load(found[1].to(tl.pointer_type(tl.float32)) + index, mask=scored, other=0.0)


@triton.jit
def halves(x, WIDTH: tl.constexpr):
    """A vector's first and second half."""
    return tl.split(tl.trans(tl.reshape(x, (2, WIDTH // 2))))


@triton.jit
def equal_bits(theirs, ids):
    """int32 [W], for each of `ids`: bit k is set if element k of `theirs` equals it."""
    bit = tl.full(theirs.shape, 1, tl.int32) << tl.arange(0, theirs.shape[0])
    return tl.sum(tl.where(theirs[:, None] == ids[None, :], bit[:, None], 0), 0)


@triton.jit
def met_in(found, ids, begin, length, memory, WIDTH: tl.constexpr):
    """int32 [W], for each id: bit k is set if it is that of element begin + k of a located list of so many."""
    place = begin + tl.arange(0, WIDTH)
    theirs = load_ids(found, place, place < length, memory)
    low, high = halves(theirs, WIDTH)
    bits = equal_bits(low, ids)
    if begin + WIDTH // 2 < length:
        bits |= equal_bits(high, ids) << (WIDTH // 2)
    return bits & first_bits(length - begin)


@triton.jit
def num_met_in(found, ids, length, memory, WIDTH: tl.constexpr):
    """int32 [W]: how many elements of a located list have each id."""
    number = tl.zeros([WIDTH], tl.int32)
    begin = 0
    while begin < length:
        number += num_bits(met_in(found, ids, begin, length, memory, WIDTH))
        begin += WIDTH
    return number


@triton.jit
def sum_met_in(found, scores, ids, length, memory, WIDTH: tl.constexpr):
    """float64 [W]: the scores of those elements of a located list that have each id, added up."""
    total = tl.zeros([WIDTH], tl.float64)
    begin = 0
    while begin < length:
        bits = met_in(found, ids, begin, length, memory, WIDTH)
        place = begin + tl.arange(0, WIDTH)
        theirs = load_scores(scores, place, place < length, memory)
        while tl.max((bits != 0).to(tl.int32), 0) != 0:  # as often as the most frequent id is there
            score = tl.gather(theirs, num_bits((bits & -bits) - 1) & (WIDTH - 1), 0)
            total += tl.where(bits != 0, score, 0.0).to(tl.float64)
            bits &= bits - 1
        begin += WIDTH
    return total


@triton.jit
def over_ids(a, row, memory, WIDTH: tl.constexpr):
    """has_id_overlap, id_overlap_count, get_max_count, jaccard."""
    ours = locate(a, row, memory)
    theirs = locate(a + OPERAND_WORDS, row, memory)
    null = (ours[0] < 0) | (theirs[0] < 0)
    length_a = tl.where(null, 0, ours[0])
    length_b = tl.where(null, 0, theirs[0])
    any_found = tl.zeros([], tl.int32)
    overlap = tl.zeros([], tl.int32)
    most = tl.zeros([], tl.int32)
    begin = 0
    while begin < length_a:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length_a
        ids = load_ids(ours, at, exists, memory)
        found = tl.where(exists, num_met_in(theirs, ids, length_b, memory, WIDTH), 0)
        num_found = tl.sum((found > 0).to(tl.int32), 0)
        any_found += num_found
        if num_found > 0:  # few rows have an id in common, and only they need to know the ids' ranks
            count = tl.zeros([WIDTH], tl.int32)
            rank = tl.zeros([WIDTH], tl.int32)
            chunk = 0
            while chunk < length_a:
                bits = met_in(ours, ids, chunk, length_a, memory, WIDTH)
                count += num_bits(bits)
                rank += num_bits(bits & first_bits(at - chunk))
                chunk += WIDTH
            overlap += tl.sum((rank < found).to(tl.int32), 0)
            most += tl.sum(tl.where((rank == 0) & (found > 0), tl.maximum(count, found), 0), 0)
        begin += WIDTH
    union = (length_a + length_b - overlap).to(tl.float64)
    slots = a + COMPARISON_SLOTS
    store_result(slots, (any_found > 0).to(tl.float32), null, row, memory)
    store_result(slots + 1, overlap, null, row, memory)
    store_result(slots + 2, most, null, row, memory)
    store_result(slots + 3, overlap.to(tl.float64) / union, null, row, memory)


@triton.jit
def over_sums(a, row, memory, WIDTH: tl.constexpr):
    """cosine, of the scores summed for each id."""
    ours = locate(a, row, memory)
    theirs = locate(a + OPERAND_WORDS, row, memory)
    our_scores = locate(a + 2 * OPERAND_WORDS, row, memory)
    their_scores = locate(a + 3 * OPERAND_WORDS, row, memory)
    null = (ours[0] < 0) | (theirs[0] < 0)
    length_a = tl.where(null, 0, ours[0])
    length_b = tl.where(null, 0, theirs[0])
    norm_a, dot = products(ours, our_scores, length_a, theirs, their_scores, length_b, memory, True, WIDTH)
    norm_b, _dot = products(theirs, their_scores, length_b, ours, our_scores, length_a, memory, False, WIDTH)
    norm = tl.sqrt(norm_a) * tl.sqrt(norm_b)
    result = tl.where(norm == 0, 0.0, dot / tl.where(norm == 0, 1.0, norm))
    store_result(a + COMPARISON_SLOTS, result, null, row, memory)


@triton.jit
def products(
    own, own_scores, length, other, other_scores, length_other, memory, CROSS: tl.constexpr, WIDTH: tl.constexpr
):
    """(sum over ids of the square of a list's scores of the id, with CROSS the same with the other list's), over pairs of elements."""
    square = tl.zeros([], tl.float64)
    product = tl.zeros([], tl.float64)
    begin = 0
    while begin < length:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length
        ids = load_ids(own, at, exists, memory)
        scores = load_scores(own_scores, at, exists, memory)
        sums = sum_met_in(own, own_scores, ids, length, memory, WIDTH)
        score = scores.to(tl.float64)
        square += tl.sum(tl.where(exists, score * sums, 0.0), 0)
        if CROSS:
            sums = sum_met_in(other, other_scores, ids, length_other, memory, WIDTH)
            product += tl.sum(tl.where(exists, score * sums, 0.0), 0)
        begin += WIDTH
    return square, product


@triton.jit
def over_scores(a, row, memory, WIDTH: tl.constexpr):
    """score_sum, score_min, score_max: of those elements of the second list whose id is in the first; NaN wins."""
    theirs = locate(a + OPERAND_WORDS, row, memory)
    scores = locate(a + 3 * OPERAND_WORDS, row, memory)
    ours = locate(a, row, memory)
    null = (ours[0] < 0) | (theirs[0] < 0)
    length_a = tl.where(null, 0, ours[0])
    length_b = tl.where(null, 0, theirs[0])
    total = tl.zeros([], tl.float64)
    least = tl.full([], float("inf"), tl.float64)
    most = tl.full([], float("-inf"), tl.float64)
    number = tl.zeros([], tl.int32)
    nans = tl.zeros([], tl.int32)
    begin = 0
    while begin < length_b:
        at = begin + tl.arange(0, WIDTH)
        exists = at < length_b
        ids = load_ids(theirs, at, exists, memory)
        loaded = load_scores(scores, at, exists, memory)
        common = exists & (num_met_in(ours, ids, length_a, memory, WIDTH) > 0)
        num_common = tl.sum(common.to(tl.int32), 0)
        if num_common > 0:  # few rows have an id in common, and only they have anything to add up
            number += num_common
            score = loaded.to(tl.float64)
            nans += tl.sum((common & flag(score != score)).to(tl.int32), 0)
            total += tl.sum(tl.where(common, score, 0.0), 0)
            least = tl.minimum(least, tl.min(tl.where(common, score, float("inf")), 0))
            most = tl.maximum(most, tl.max(tl.where(common, score, float("-inf")), 0))
        begin += WIDTH
    slots = a + COMPARISON_SLOTS
    store_result(slots, total, null, row, memory)
    least = tl.where(nans > 0, total, tl.where(number > 0, least, 0.0))
    most = tl.where(nans > 0, total, tl.where(number > 0, most, 0.0))
    store_result(slots + 1, least, null, row, memory)
    store_result(slots + 2, most, null, row, memory)
