# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Lists of what a selection picked: element e of a group of rows is its e-th pick, so that no element looks for its row.

The twin of `values_kernel` for stages that keep the positions of what their selection packed: one read, a whole chain
in registers, one write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.ops.apply import apply_chain
from rap_trainer.fusion.values_kernel import load_operand, store_elements
from rap_trainer.fusion.words import (
    LIST_CAPACITY,
    LIST_CHAINS,
    LIST_OFFSETS,
    LIST_POST,
    LIST_PRE,
    LIST_WORDS,
    OPERAND_CHOSEN,
    OPERAND_OFFSETS,
)


@triton.jit(do_not_specialize=["first", "num_stages", "num_slots", "num_rows", "num_ids"])
def picked_kernel(
    entries,
    first,
    num_stages,
    steps,
    ints,
    floats,
    pointers,
    num_slots,
    counts,
    offsets,
    chosen,
    bases,
    ids,
    weights,
    counters,
    num_rows,
    num_ids,
    CHAINS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FLOAT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Stages [first, first + num_stages) x the groups of ROWS rows that their selections packed."""
    memory = (steps, ints, floats, pointers, num_slots, counters)
    groups = (num_rows + ROWS - 1) // ROWS
    item = tl.program_id(0)
    while item < num_stages * groups:
        entry = entries + (first + item // groups) * LIST_WORDS
        first_row = (item % groups) * ROWS
        own = offsets + tl.load(entry + LIST_OFFSETS)
        at = tl.load(own + first_row)
        end = tl.load(own + tl.minimum(first_row + ROWS, num_rows)).to(tl.int64)
        end = tl.minimum(end, tl.load(entry + LIST_CAPACITY)).to(tl.int32)
        picks = chosen + tl.load(entry + OPERAND_CHOSEN) - at
        picks += tl.load(offsets + tl.load(entry + OPERAND_OFFSETS) + first_row)
        while at < end:
            element = at + tl.arange(0, TILE)
            mask = element < end
            source = tl.load(picks + element, mask=mask, other=0)
            i, f, null, weight = load_operand(entry, element, source, mask, memory, counts, 0, entry, WEIGHTED, FLOAT)
            for part in tl.static_range(2):
                chain = tl.load(entry + LIST_CHAINS + part)
                begin = tl.load(entry + (LIST_PRE if part == 0 else LIST_POST))
                i, f, null = apply_chain(chain, begin, (i, f, null), element, element, mask, memory, CHAINS)
            store_elements(entry, i, f, weight, element, mask, pointers, (bases, ids, weights, num_ids), WEIGHTED)
            at += TILE
        item += tl.num_programs(0)
