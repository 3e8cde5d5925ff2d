"""Layout of the device tables: which int64 word of a row says what. Written by `tables`, read by the kernels."""

from __future__ import annotations

import triton.language as tl

# One row for each lane.
LANE_WORDS = tl.constexpr(16)
LANE_SLOT = tl.constexpr(0)
LANE_DTYPE = tl.constexpr(1)
LANE_STEPS = tl.constexpr(2)  # the first one's parameters
LANE_BASE = tl.constexpr(5)  # elements before row 0
LANE_BASE_PER_ROW = tl.constexpr(6)  # the same, times the rows of the batch
LANE_STRIDE = tl.constexpr(7)
LANE_DYNAMIC = tl.constexpr(8)  # place among the device's bases, or -1
LANE_LENGTHS = tl.constexpr(9)  # row of the lengths to write, or -1
LANE_WIDTH = tl.constexpr(10)
LANE_PRESENT = tl.constexpr(13)  # column of the flags of presence, or -1
LANE_FORM = tl.constexpr(14)  # which of the launch's forms

# One row for each bundle of lanes.
BUNDLE_WORDS = tl.constexpr(4)
BUNDLE_LANE = tl.constexpr(0)  # the first one
BUNDLE_NUMBER = tl.constexpr(1)  # of lanes
BUNDLE_FORM = tl.constexpr(2)  # of all of them
BUNDLE_BASE = tl.constexpr(3)  # column of the first one

# Behind a binding's addresses by slot, the same for each lane: what a lane reads is found with its row, not after it.
LANE_ADDRESSES = tl.constexpr(4)  # values, null flags, lengths, nothing

KIND_DENSE = tl.constexpr(0)
KIND_LABEL = tl.constexpr(1)
KIND_IDS = tl.constexpr(2)
KIND_INT64 = tl.constexpr(3)  # scratch
KIND_FLOAT32 = tl.constexpr(4)
KIND_FLOAT64 = tl.constexpr(5)
KIND_CODES = {"dense": 0, "label": 1, "ids": 2, "int64": 3, "float32": 4, "float64": 5}
"""By where numbers are written: an output, or scratch of a type."""

# An operand: eight words, wherever one is described.
OPERAND_SLOT = tl.constexpr(0)
OPERAND_DTYPE = tl.constexpr(1)
OPERAND_IS_LIST = tl.constexpr(2)
OPERAND_OFFSETS = tl.constexpr(3)  # where its offsets begin, or -1 where nobody needs them
OPERAND_COUNTS = tl.constexpr(4)  # where its selection's counts begin, or -1
OPERAND_CHOSEN = tl.constexpr(5)  # where its selection's positions begin, or -1 if they are 0, 1, 2, ...
OPERAND_WEIGHTS = tl.constexpr(6)  # slot of the weights, or -1
OPERAND_STARTS = tl.constexpr(7)  # where its selection's starts within the positions begin
OPERAND_WORDS = tl.constexpr(8)

# One row for each list whose lengths are scanned: a stage, or a raw list whose offsets are needed.
LIST_WORDS = tl.constexpr(40)
LIST_OPERAND = tl.constexpr(0)
LIST_OTHER = tl.constexpr(8)
LIST_BEFORE = tl.constexpr(16)  # limit
LIST_STRUCTURE = tl.constexpr(17)
LIST_PARAMETER = tl.constexpr(18)
LIST_AFTER = tl.constexpr(19)  # limit
LIST_LENGTHS = tl.constexpr(20)  # row of the output lengths, or -1
LIST_SLOT = tl.constexpr(21)  # scratch slot that receives lengths, or -1
LIST_OFFSETS = tl.constexpr(22)  # where to write offsets, or -1
LIST_FILLED = tl.constexpr(23)  # where its rows that have elements are noted, or -1
LIST_PRE = tl.constexpr(24)  # first step
LIST_POST = tl.constexpr(26)
LIST_KIND = tl.constexpr(28)
LIST_TARGET = tl.constexpr(29)  # ids: the sparse feature; scratch: the slot
LIST_WEIGHTS = tl.constexpr(30)  # scratch slot of the weights, or -1
LIST_CAPACITY = tl.constexpr(31)  # elements the destination holds
LIST_CHAINS = tl.constexpr(32)  # which of the launch's chains: before the structure, after it
LIST_BY_ROW = tl.constexpr(34)  # picked: its picks are found by row where that is possible
LIST_DRAW = tl.constexpr(35)  # picked: the draw by which they are, or -1: all elements of a row
LIST_KEEPS = tl.constexpr(36)  # element e comes from element e

SAME = tl.constexpr(0)
NGRAM = tl.constexpr(1)
WINDOWS = tl.constexpr(2)
ONEHOT_LIST = tl.constexpr(3)
CARTESIAN = tl.constexpr(4)
FILL_ROWS = tl.constexpr(5)
NULL_ROWS = tl.constexpr(6)
STRUCTURES = ("same", "ngram", "windows", "onehot", "cartesian", "fill_rows", "null_rows")

# One row for each selection.
SELECTION_WORDS = tl.constexpr(24)
SELECTION_OPERAND = tl.constexpr(0)  # counts and positions are where this operand's consumers look
SELECTION_PARTNER = tl.constexpr(8)  # slot, or -1
SELECTION_MODE = tl.constexpr(9)
SELECTION_LIMIT = tl.constexpr(10)
SELECTION_RATE = tl.constexpr(11)  # or -1: no sample
SELECTION_SALT = tl.constexpr(12)
SELECTION_HASHES = tl.constexpr(13)  # where the hashes of its rows begin
SELECTION_KEEP = tl.constexpr(14)  # limit after the sample
SELECTION_DRAW = tl.constexpr(15)  # the draw it shares, or -1
SELECTION_FOUND = tl.constexpr(16)  # how its picks are found where rows allow it: a key of FOUND_CODES
MODES = ("none", "propagate", "skip")
PROPAGATE = tl.constexpr(1)
SKIP = tl.constexpr(2)
FOUND_CODES = {"written": 0, "by_row": 1, "by_place": 2}
WRITTEN = tl.constexpr(0)
BY_ROW = tl.constexpr(1)
BY_PLACE = tl.constexpr(2)

# One row for each draw that selections share.
DRAW_WORDS = tl.constexpr(2)
DRAW_SALT = tl.constexpr(0)
DRAW_RATE = tl.constexpr(1)

# One row for each comparison: first, second, scores of the first, of the second.
COMPARISON_WORDS = tl.constexpr(40)
COMPARISON_KIND = tl.constexpr(32)
COMPARISON_SLOTS = tl.constexpr(33)  # where each result of the kind goes, or -1
COMPARED_IDS = tl.constexpr(0)
COMPARED_SCORES = tl.constexpr(1)
COMPARED_SUMS = tl.constexpr(2)
COMPARISON_KINDS = {
    "ids": ("has_id_overlap", "id_overlap_count", "get_max_count", "jaccard"),
    "scores": ("score_sum", "score_min", "score_max"),
    "sums": ("cosine",),
}
"""Comparisons of one kind and the same lists are made in one pass; the order is that of the slots."""
