"""Data or a machine that never stands still for a window is planned for as the mix that it is; what changes once is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rap_operator.replanning.mix import LASTS
from rap_operator.replanning.values import Ask, Reading
from rap_operator.replanning.window import AROUND
from replanning.judged_job import POLICY, PROPOSAL, STATE, STEP_S, ago, readings, verdict
from simulator.policies import Never, Ours
from simulator.run import oscillations, simulate
from simulator.traces import TRACES

LONG_AGO_S = (LASTS + 1) * POLICY.window_seconds
RESTLESS = STATE.model_copy(update={"restless_since": ago(LONG_AGO_S)})


def with_lists(*lengths: float) -> tuple[Reading, ...]:
    """Readings of these mean list lengths in turn, the last of them the newest."""
    rows = readings(count=40)
    every = [lengths[number % len(lengths)] for number in range(len(rows))]
    return tuple(
        replace(row, pages=tuple(replace(page, lists={"cat": length}) for page in row.pages))
        for row, length in zip(rows, every, strict=True)
    )


SIDES = with_lists(*[20.0] * 4, *[80.0] * 4)
"""As long as a window each, for ever."""


def test_a_neighbour_that_comes_and_goes_gets_one_plan_for_both_and_keeps_it() -> None:
    ours = Ours()
    plant, _ = simulate(TRACES["flicker"], ours, days=0.5)
    alone, _ = simulate(TRACES["flicker"], Never(), days=0.5)
    assert plant.steps > 1.005 * alone.steps
    assert [outcome for _, outcome, _ in ours.outcomes] == ["Applying", "Switched", "Confirmed"]
    assert len(plant.switches) == 1
    assert oscillations(plant) == 0


def test_a_plan_for_a_mix_that_makes_things_worse_is_returned_from() -> None:
    ours = Ours()
    plant, _ = simulate(TRACES["flicker"], ours, days=0.3, curse=1.3)
    assert ("Reverted", "Ineffective") in [(outcome, reason) for _, outcome, reason in ours.outcomes]
    assert plant.plan == plant.switches[0][1]
    assert len(ours.state.refused) == 1


def test_what_lasts_is_searched_for_as_the_mean_of_all_its_sides() -> None:
    found = verdict(None, RESTLESS, readings=SIDES, proposal=None)
    (ask,) = found.acts
    assert isinstance(ask, Ask)
    assert ask.measured.workload["cat"].mean_list_length == pytest.approx(50.0, rel=0.1)
    assert found.state.restless_since == RESTLESS.restless_since


def test_what_has_only_begun_to_change_is_waited_for_and_noted() -> None:
    found = verdict(None, STATE, readings=with_lists(*[20.0] * 38, 80.0, 80.0), proposal=None)
    assert found.condition[1] == "Unsteady"
    assert found.state.restless_since == ago(0)
    later = verdict(None, found.state, readings=SIDES, proposal=None)
    assert not later.acts


def test_a_mix_whose_shares_still_change_is_waited_for() -> None:
    found = verdict(None, RESTLESS, readings=with_lists(*[20.0] * 32, *[80.0] * 8), proposal=None)
    assert found.condition[1] == "Unsteady"
    assert not found.acts


def test_a_window_like_all_around_it_ends_the_restlessness() -> None:
    found = verdict(None, RESTLESS, readings=with_lists(20.0), proposal=None)
    assert found.condition[1] == "Steady"
    assert found.state.restless_since is None


def test_one_side_of_a_known_mix_is_no_drift_to_follow() -> None:
    """The newest window is steady, and unlike what is around it."""
    found = verdict(None, RESTLESS, readings=with_lists(*[80.0] * 3, *[20.0] * 37)[:34] + SIDES[34:], proposal=None)
    assert not found.acts


def test_a_clock_that_was_set_back_holds_no_mix_up_for_longer() -> None:
    future = STATE.model_copy(update={"restless_since": ago(-7200)})
    found = verdict(None, future, readings=SIDES, proposal=None)
    assert found.state.restless_since == ago(0)
    assert found.condition[1] in ("Unsteady", "Steady"), "as if it had begun now"


def test_what_changes_once_is_over_before_it_counts_as_a_mix() -> None:
    assert LASTS >= 2 * AROUND
    for name in ("burst", "backlog"):
        plant, _ = simulate(TRACES[name], Ours(), days=1.2)
        assert plant.switches == [], name


def test_each_switch_of_the_last_two_hours_doubles_the_gain_that_is_asked_for() -> None:
    def outcome(gain: float, *ages_s: float) -> str:
        lately = STATE.model_copy(update={"switches": [ago(age_s) for age_s in ages_s]})
        found = verdict(None, lately, proposal=replace(PROPOSAL, after_seconds=(1 - gain) * STEP_S))
        assert found.record is not None
        return found.record.outcome

    assert outcome(0.03) == outcome(0.03, 7300) == outcome(0.05, 3600) == outcome(0.09, 1000, 3600) == "Applying"
    assert outcome(0.03, 3600) == outcome(0.07, 1000, 3600) == "None"
