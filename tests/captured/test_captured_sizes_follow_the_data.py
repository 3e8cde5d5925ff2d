"""Captured sizes of lists: which one a step takes, which are kept, and when a large batch leaves the training thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.captured.raw_layout import RawLayout, raw_layout
from rap_trainer.captured.sizes import Choice, Size, elements_of, kept, smallest
from rap_trainer.captured.uploads import LARGE_BYTES, is_large
from rap_trainer.plans import plan_job, synthetic_batch

DOCUMENT = plan_job(0, max_rows=100, dim=8)


@pytest.fixture(scope="module")
def graph() -> FeatureGraph:
    graph, problems = compile_features(RAPJob.model_validate(DOCUMENT).spec)
    assert graph is not None, problems
    return graph


def size(layout: RawLayout, *, last_step: int = 1) -> Size:
    nothing = cast(Any, SimpleNamespace())
    return Size(
        number=0, layout=layout, lists=None, slots=nothing, preprocessor=nothing,
        pinned=(), step=nothing, graphs=nothing, last_step=last_step,
    )  # fmt: skip


def layout_of(graph: FeatureGraph, **capacities: int) -> RawLayout:
    return raw_layout(graph, batch_size=32, capacities=capacities)


def test_a_batch_needs_the_smallest_size_that_holds_each_of_its_lists(graph: FeatureGraph) -> None:
    sizes = [size(layout_of(graph, cat_3=32)), size(layout_of(graph, cat_3=40)), size(layout_of(graph, cat_3=99))]
    batch = synthetic_batch(DOCUMENT, 32, seed=1)
    elements = elements_of(batch, sizes[0].layout)
    names = list(sizes[0].layout.capacities)
    assert elements.tolist() == [batch.columns[name].values_N.numel() for name in names]
    assert smallest(sizes, elements) == 0
    for held, index in ((33, 1), (40, 1), (41, 2), (99, 2), (100, 3)):
        longer = np.where(np.array(names) == "cat_3", held, elements)
        assert smallest(sizes, longer) == index


def test_a_larger_size_is_taken_at_once_and_a_smaller_one_with_patience() -> None:
    choice = Choice(patience=3)
    assert [choice.of(2, 0), choice.of(1, 2), choice.of(0, 2)] == [2, 2, 2]
    assert choice.of(1, 2) == 1  # three in a row fit into it
    assert [choice.of(0, 1), choice.of(0, 1), choice.of(1, 1), choice.of(0, 1), choice.of(0, 1)] == [1] * 5
    assert choice.of(0, 1) == 0


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4))
def test_a_choice_always_holds_what_is_needed_and_changes_down_seldom(needs: list[int], patience: int) -> None:
    choice, current, downs = Choice(patience), 0, 0
    for needed in needs:
        taken = choice.of(needed, current)
        assert taken >= needed
        downs += taken < current
        current = taken
    assert downs <= len(needs) // patience


def test_the_latest_taken_sizes_are_kept_in_ascending_order_and_none_that_no_step_took(graph: FeatureGraph) -> None:
    layout = layout_of(graph)
    sizes = [size(layout, last_step=step) for step in (7, 0, 9, 8)]
    assert kept(sizes, most=3) == [sizes[2], sizes[3]]
    assert kept(sizes, most=9) == [sizes[0], sizes[2], sizes[3]]
    assert kept(sizes[1:2]) == []


def test_only_room_for_many_elements_is_worth_a_thread_of_its_own(graph: FeatureGraph) -> None:
    assert not is_large(layout_of(graph))
    assert not is_large(raw_layout(graph, batch_size=1 << 20, capacities={}))  # one element a row: a few copies
    assert is_large(layout_of(graph, cat_3=LARGE_BYTES))
