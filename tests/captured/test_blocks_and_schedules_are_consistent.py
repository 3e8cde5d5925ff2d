"""Layout arithmetic and schedule values of the captured step: pure, no tensors of a model."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rap_contract.plan import Placement as Planned
from rap_contract.plan import Plan
from rap_contract.windows import INLINE, PLACES
from rap_trainer.captured.blocks import Blocks, Origin, feature_order, pair_index
from rap_trainer.captured.flat import flat_layout
from rap_trainer.captured.schedule import Placement, Schedule, Window, schedule_of


@given(num_features=st.integers(2, 40))
def test_pairs_are_numbered_as_triu_indices_lists_them(num_features: int) -> None:
    upper = torch.triu_indices(num_features, num_features, 1)
    numbers = [pair_index(i, j, num_features) for i, j in upper.t().tolist()]
    assert numbers == list(range(upper.shape[1]))


@given(st.permutations(list(range(7))), st.integers(0, 2))
def test_every_feature_has_one_row_and_rows_never_overlap(order: list[int], rank: int) -> None:
    blocks = Blocks(order=tuple(order), counts=(3, 0, 4), rank=rank, batch_size=5, dim=4)
    rows = blocks.tile()
    assert sorted(row.position for row in rows) == list(range(8))
    for origin in Origin:
        mine = [row for row in rows if row.origin is origin]
        elements = [
            row.offset + b * row.stride + d for row in mine for b in range(blocks.batch_size) for d in range(blocks.dim)
        ]
        assert len(set(elements)) == len(elements)
        if origin is Origin.PEER and elements:
            assert max(elements) < blocks.world_size * blocks.block_elements


def test_the_order_is_rank_major() -> None:
    assert feature_order([["b", "d"], ["a", "c"]], ["a", "b", "c", "d"]) == (1, 3, 0, 2)


@pytest.mark.parametrize(
    ("order", "counts", "message"),
    [((0, 0), (2,), "each feature once"), ((0, 1), (1,), "sum to 1"), ((0, 1), (2,), "rank 1 of 1")],
    ids=["twice", "counts", "rank"],
)
def test_impossible_blocks_are_refused(order: tuple[int, ...], counts: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Blocks(order=order, counts=counts, rank=1 if "rank" in message else 0, batch_size=1, dim=4)


def test_segments_are_aligned_and_disjoint_and_sums_lie_together() -> None:
    layout = flat_layout([(12, 5), (8, 12), (1, 8)], [8, 12, 8])
    segments = sorted((*layout.weights, *layout.biases), key=lambda segment: segment.start)
    assert all(segment.start % 64 == 0 for segment in segments)
    assert all(a.end <= b.start for a, b in pairwise(segments))
    assert segments[-1].end == layout.size
    assert [segment.start >= layout.sums_start for segment in layout.weights] == [False, False, True]
    assert all(segment.start >= layout.sums_start for segment in layout.biases)
    early = flat_layout([(12, 5), (8, 12), (1, 8)], [8, 12, 8], early=[1])
    assert early.weights[1].start == 0
    assert early.early_size == early.weights[1].end == early.weights[0].start
    assert (early.size, early.biases) == (layout.size, layout.biases)
    with pytest.raises(ValueError, match="below the layer's input 12"):
        flat_layout([(12, 5), (8, 12), (1, 8)], [8, 8, 8])
    with pytest.raises(ValueError, match="one output, got 2"):
        flat_layout([(12, 5), (2, 12)], [8, 12])


def test_a_schedule_keeps_the_kernels_order() -> None:
    first = Placement(kernel=0, window=Window.OUTPUT_DIST, programs=64)
    second = Placement(kernel=1, window=Window.EMB_BWD)
    schedule = Schedule(placements=(first, second))
    assert schedule.at(Window.OUTPUT_DIST) == (first,)
    assert schedule.last_window is Window.EMB_BWD
    assert Schedule().last_window is Window.INLINE
    with pytest.raises(ValueError, match="earlier window"):
        Schedule(placements=(Placement(kernel=0, window=Window.EMB_BWD), Placement(kernel=1, window=Window.INLINE)))
    with pytest.raises(ValueError, match=r"kernels 0\.\.0 in order"):
        Schedule(placements=(second,))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Placement(kernel=0, window=Window.INLINE, programs=0)


def plan(mapping: dict[str, int | None]) -> Plan:
    schedule = (Planned(window="output_dist", programs=64), Planned(window="emb_bwd"))
    kernels = (SimpleNamespace(features=("f",)), SimpleNamespace(features=("g",)))
    return cast(Plan, SimpleNamespace(mapping=mapping, kernels=kernels, schedule=schedule))


def test_a_planners_schedule_is_taken_as_it_is() -> None:
    assert tuple(window.value for window in Window) == (INLINE, *PLACES)
    assert schedule_of(plan({"f": None})) == Schedule(
        placements=(
            Placement(kernel=0, window=Window.OUTPUT_DIST, programs=64),
            Placement(kernel=1, window=Window.EMB_BWD),
        ),
        parts=(("f",), ("g",)),
    )


def test_a_mapping_to_other_ranks_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="1 features on their tables' owners, first b"):
        schedule_of(plan({"a": None, "b": 1}))
