"""After each window of steps the plan's prediction meets what was measured, part by part, and the history corrects it."""

from __future__ import annotations

from typing import Any

import pytest
from planner.random_tasks import random_profile, random_task
from rap_contract.plan import Plan
from rap_planner.correct import MOST, corrected
from rap_planner.explain import plan_of
from rap_planner.search import Planner
from rap_trainer.plan.comparison import (
    CORRECTED,
    HISTORY,
    LIST_LENGTHS,
    PREPROCESSING,
    STEP,
    TRAINING,
    Comparison,
    Window,
    predicted_parts,
)

STEPS = 4
LENGTHS = {"ids": 20.0, "bags": 10.0}


def plan(seed: int = 2) -> Plan:
    result = Planner().search(random_task(seed), random_profile(seed))
    return plan_of(result, random_profile(seed))


def seconds(of: Plan, *, training: float = 1.0, exposed: float = 0.0) -> dict[str, float]:
    """A report of STEPS steps that take `training` times what is predicted, as an eager runtime times them."""
    main = predicted_parts(of)[TRAINING] * training * STEPS
    return {"forward": 0.4 * main, "backward": 0.5 * main, "update": 0.1 * main, "preprocess": exposed * STEPS}


def rows(window: Window | None) -> dict[str, tuple[Any, Any]]:
    assert window is not None
    return {row.part: (row.predicted, row.measured) for row in window.rows}


def test_parts_of_an_eager_step_are_compared_each_with_its_own_prediction() -> None:
    made, comparison = plan(), Comparison(window_steps=STEPS)
    assert comparison.add(made, seconds(made), STEPS, LENGTHS) is None  # the report spans the switch to the plan
    found = rows(comparison.add(made, seconds(made, training=1.2, exposed=1e-4), STEPS, LENGTHS))
    training = predicted_parts(made)[TRAINING]
    assert found[TRAINING] == (pytest.approx(training), pytest.approx(1.2 * training))
    assert found[PREPROCESSING][1] == pytest.approx(1e-4)
    assert found[STEP] == (pytest.approx(made.prediction.step_seconds), pytest.approx(1.2 * training + 1e-4))
    assert found[LIST_LENGTHS] == (pytest.approx(0.0), None)
    assert comparison.correction(TRAINING) == pytest.approx(1.2)


def test_a_captured_step_is_compared_as_a_whole_for_nothing_inside_it_is_timed() -> None:
    made, comparison = plan(), Comparison(window_steps=STEPS)
    report = {"forward": 1.1 * made.prediction.step_seconds * STEPS, "data": 0.5}
    comparison.add(made, report, STEPS, {})
    found = rows(comparison.add(made, report, STEPS, {}))
    assert found[STEP][1] == pytest.approx(1.1 * made.prediction.step_seconds)
    assert found[TRAINING][1] is None
    assert found[PREPROCESSING][1] is None


def test_lists_that_grow_are_a_term_of_their_own() -> None:
    made, comparison = plan(), Comparison(window_steps=STEPS)
    added = sum(kernel.added_seconds for kernel in made.prediction.kernels)
    assert added > 0
    for _ in range(2):
        comparison.add(made, seconds(made), STEPS, LENGTHS)
    longer = {group: 1.5 * length for group, length in LENGTHS.items()}
    found = rows(comparison.add(made, seconds(made), STEPS, longer))
    assert found[LIST_LENGTHS][0] == pytest.approx(0.5 * added)


def test_the_history_is_bounded_and_corrects_the_next_prediction() -> None:
    made, comparison = plan(), Comparison(window_steps=STEPS)
    for _ in range(3 * HISTORY):
        window = comparison.add(made, {"forward": 1.3 * made.prediction.step_seconds * STEPS}, STEPS, {})
    assert comparison.remembered == HISTORY
    predicted, measured = rows(window)[CORRECTED]
    assert predicted == pytest.approx(measured) == pytest.approx(1.3 * made.prediction.step_seconds)


def test_another_plan_begins_a_new_window() -> None:
    first, second, comparison = plan(2), plan(3), Comparison(window_steps=2 * STEPS)
    comparison.add(first, seconds(first), STEPS, {})
    comparison.add(first, seconds(first), STEPS, {})
    assert comparison.add(second, seconds(second), 2 * STEPS, {}) is None
    assert comparison.add(second, seconds(second), STEPS, {}) is None
    window = comparison.add(second, seconds(second), STEPS, {})
    assert window is not None
    assert window.plan_hash == second.hash
    assert comparison.add(None, {}, STEPS, {}) is None


def test_a_corrected_profile_predicts_what_was_measured() -> None:
    profile, task = random_profile(5), random_task(5, ranks=1)
    slower = corrected(profile, training=1.5, preprocessing=2.0)
    before, after = (Planner().search(task, each).inline.seconds for each in (profile, slower))
    preprocessing = before - profile.step_seconds
    assert after - slower.step_seconds == pytest.approx(2.0 * preprocessing, rel=0.02)
    assert slower.step_seconds == pytest.approx(1.5 * profile.step_seconds)
    assert corrected(profile, training=1e9).step_seconds == pytest.approx(MOST * profile.step_seconds)
