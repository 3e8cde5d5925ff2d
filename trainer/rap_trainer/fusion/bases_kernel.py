# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Between the passes: where each sparse feature begins in the output, and whether everything fits.

One program. F features in the order of the output, P blocks, S stages.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rap_trainer.fusion.words import LIST_CAPACITY, LIST_WORDS


@triton.jit(do_not_specialize=["first", "num_stages", "num_features", "num_blocks", "num_rows"])
def bases_kernel(
    entries,
    totals,
    first,
    num_stages,
    features,
    num_features,
    blocks,
    num_blocks,
    bases,
    block_totals,
    overflow,
    num_rows,
    STAGES: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Stages are entries [first, first + num_stages).

    `features`: (entry or -1, width, block, sparse index) of int64 each; `blocks`: (first feature, one past
    the last, base, capacity) each. `overflow` is set to 1 if anything does not fit, and never cleared here.
    """
    stage = tl.arange(0, STAGES)
    is_stage = stage < num_stages
    total = tl.load(totals + first + stage, mask=is_stage, other=0)
    capacity = tl.load(entries + (first + stage) * LIST_WORDS + LIST_CAPACITY, mask=is_stage, other=0)
    too_many = tl.sum((total > capacity).to(tl.int32), 0)

    place = tl.arange(0, FEATURES)
    exists = place < num_features
    entry = tl.load(features + 4 * place, mask=exists, other=-1)
    width = tl.load(features + 4 * place + 1, mask=exists, other=0)
    own_block = tl.load(features + 4 * place + 2, mask=exists, other=-1)
    index = tl.load(features + 4 * place + 3, mask=exists, other=0)
    held = tl.load(totals + entry, mask=entry >= 0, other=0)
    held = tl.where(entry >= 0, held, width * num_rows)
    before = tl.cumsum(held, 0) - held
    base = tl.zeros([FEATURES], tl.int64)
    block = 0
    while block < num_blocks:
        begin = tl.load(blocks + 4 * block)
        end = tl.load(blocks + 4 * block + 1)
        ahead = tl.sum(tl.where(place < begin, held, 0), 0)
        filled = tl.sum(tl.where((place >= begin) & (place < end), held, 0), 0)
        tl.store(block_totals + block, filled)
        too_many += (filled > tl.load(blocks + 4 * block + 3)).to(tl.int32)
        base = tl.where(own_block == block, before - ahead + tl.load(blocks + 4 * block + 2), base)
        block += 1
    tl.store(bases + index, base, mask=exists)
    if too_many > 0:
        tl.store(overflow, 1)
