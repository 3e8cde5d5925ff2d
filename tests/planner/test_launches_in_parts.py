"""Launches cut in parts: the same outputs, whatever the cut; the planner cuts where that hides more, and says of which launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.random_tasks import random_profile, random_task
from rap_contract.graph import compile_features
from rap_contract.job import RAPJobSpec
from rap_contract.plan import FusedKernel
from rap_contract.profile import Response, WindowProfile
from rap_contract.windows import INPUT_DIST, PLACES
from rap_planner.cost import Costs
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of, sensitivity
from rap_planner.loads import Estimator
from rap_planner.search import SPLIT_GAIN, Planner
from rap_trainer.fusion import FusedProgram, Limits
from rap_trainer.fusion.parts import Part, in_parts
from rap_trainer.synthetic_batch import MEAN_LENGTH, synthetic_batch
from train.small_jobs import document

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
ROWS = 9
SPLITS = Planner(enumerator=Enumerator(splits=True))
WHOLE = Planner(enumerator=Enumerator())


def program() -> tuple[FusedProgram, dict[str, Any]]:
    """Lists that are scanned, sampled and made anew, bundles of numbers, and a label: every kind of launch that can be cut."""
    asked = document(Path("/nowhere"))
    asked["spec"]["columns"] |= {"int_{3..8}": "float32"}
    asked["spec"]["features"][0]["columns"] = ["int_{0..8}"]
    asked["metadata"]["annotations"] = {MEAN_LENGTH: "3"}
    asked["spec"]["features"].append(
        {
            "name": "sampled_{column}",
            "columns": ["cat_{0..2}"],
            "ops": [{"sample": {"rate": 0.5}}, {"positiveModulus": {"modulus": 40}}],
            "table": {"rows": 40, "dim": 8},
        }
    )
    graph, problems = compile_features(RAPJobSpec.model_validate(asked["spec"]))
    assert graph is not None, problems
    limits = Limits(batch_size=ROWS, capacities={n: 100 * ROWS for n, kind in graph.columns.items() if kind.is_list})
    return FusedProgram(graph, torch.device("cpu"), limits=limits), asked


def parts_of(fused: FusedProgram, cuts: Sequence[int]) -> list[Part]:
    """Each launch that can be cut, after these numbers of features."""
    found: list[Part] = []
    for launch in fused.groups.launches:
        names = launch.features
        at = sorted({cut % len(names) for cut in cuts} - {0}) if launch.kernel in ("lanes", "values") else []
        edges = [0, *at, len(names)]
        found += [(launch.kernel, names[begin:end]) for begin, end in pairwise(edges)]
    return found


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2, 4), (4,), (6,), (3, 7)], ids=str)
def test_parts_of_launches_make_what_whole_ones_make(cuts: tuple[int, ...]) -> None:
    fused, asked = program()
    raw = synthetic_batch(asked, ROWS, seed=3)
    whole = fused.run(raw)  # makes room for nulls first
    parts = parts_of(fused, cuts)
    assert len(parts) > len(fused.groups.launches)
    assert sum(map(len, fused.groups.launches[-1].bundles)) == 9
    cut = fused.in_parts(parts).run(raw)
    assert whole.sparse.values().numel() > ROWS
    assert torch.equal(whole.dense_BD, cut.dense_BD)
    assert torch.equal(whole.labels_B, cut.labels_B)
    assert torch.equal(whole.sparse.values(), cut.sparse.values())
    assert torch.equal(whole.sparse.lengths(), cut.sparse.lengths())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda parts: parts[:-1], "launch"),
        (lambda parts: [*parts, parts[-1]], "the plan places"),
        (lambda parts: [("values", parts[0][1]), *parts[1:]], "launch 0 is values"),
        (lambda parts: [(parts[0][0], parts[0][1][::-1]), *parts[1:]], "launch 0 is"),
    ],
    ids=["missing", "more", "other stage", "other order"],
)
def test_what_is_no_part_of_a_launch_is_refused_by_name(changed, words: str) -> None:  # type: ignore[no-untyped-def]  # a case's own function
    fused, _ = program()
    with pytest.raises(ValueError, match=words):
        in_parts(fused.groups, changed(parts_of(fused, [])))


def test_a_task_cut_in_two_has_the_same_work_at_the_same_rates() -> None:
    task, profile = random_task(4, items=8, kernels=3, ranks=2), random_profile(4)
    names = tuple(item.name for item in task.items)
    stages = ("lanes", "values", "lanes")
    kernels = tuple(FusedKernel(launch=n, stage=stage, wave=0, features=names) for n, stage in enumerate(stages))
    whole = replace(task, kernels=kernels)
    cut = whole.split(1, 3)
    assert [kernel.features for kernel in cut.kernels] == [names, names[:3], names[3:], names]
    assert cut.origins == (0, 1, 1, 2)
    costs = Costs(profile)
    one, two = Estimator(costs, whole), Estimator(costs, cut)
    assert two.least_seconds() == pytest.approx(one.least_seconds())
    assert two.rates == (one.rates[0], one.rates[1], one.rates[1], one.rates[2])
    assert cut.cut(cut.kernels).kernels == cut.kernels
    with pytest.raises(ValueError, match="make up"):
        whole.cut(kernels[:2])


def two_windows_of_half_a_kernel() -> tuple[object, object]:
    """One launch that either of two windows hides half of, and nothing more."""
    task, profile = random_task(1, items=8, kernels=1, ranks=1), random_profile(1)
    names = tuple(item.name for item in task.items)
    task = replace(task, kernels=(FusedKernel(launch=0, stage="lanes", wave=0, features=names),))
    whole = Estimator(Costs(profile), task).least_seconds()
    windows = [WindowProfile(name=INPUT_DIST, seconds=0.0)]
    for name in PLACES:
        points = ((0.7 * whole, 0.0), (0.71 * whole, 0.71 * whole)) if name in ("emb_fwd", "emb_bwd") else ()
        responses = tuple(
            Response(kind=kind, num_bytes=1, solo_seconds=solo, added_seconds=added)
            for kind in ("memory", "compute")
            for solo, added in points
        )
        windows.append(WindowProfile(name=name, seconds=None, responses=responses))
    return task, profile.model_copy(update={"windows": tuple(windows), "step_seconds": 3 * whole})


def test_a_kernel_too_long_for_any_window_is_cut_over_two_and_the_plan_says_so() -> None:
    task, profile = two_windows_of_half_a_kernel()
    whole, cut = WHOLE.search(task, profile), SPLITS.search(task, profile)  # type: ignore[arg-type]  # a pair of values
    assert cut.best.seconds < whole.best.seconds * (1 - SPLIT_GAIN)
    plan = plan_of(cut, profile)  # type: ignore[arg-type]  # as above
    assert {placed.window for placed in plan.schedule} == {"emb_fwd", "emb_bwd"}
    assert sorted(name for kernel in plan.kernels for name in kernel.features) == sorted(plan.mapping)
    assert len(sensitivity(SPLITS, task, profile, of=cut)) == 3  # type: ignore[arg-type]  # as above


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_splits_never_make_a_plan_worse(seed: int) -> None:
    task, profile = random_task(seed, items=5, kernels=2, ranks=2), random_profile(seed)
    assert SPLITS.search(task, profile).best.seconds <= WHOLE.search(task, profile).best.seconds
