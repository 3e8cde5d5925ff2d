"""The whole decision loop against a simulated job: what it costs, how often it switches, and what it never does."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rap_contract.operations import Replanning
from simulator.job import World
from simulator.plant import Plant
from simulator.policies import Flink, Never, Ours, Threshold
from simulator.run import oscillations, simulate
from simulator.traces import DAY_S, HOUR_S, TRACES, Trace

DAYS = 0.5


@pytest.mark.parametrize("seed", [1])
def test_a_steady_job_is_left_alone(seed: int) -> None:
    plant, _ = simulate(TRACES["flat"], Ours(), days=DAYS, seed=seed)
    assert len(plant.switches) <= 1
    assert oscillations(plant) == 0


@pytest.mark.parametrize("name", ["burst", "backlog", "flicker", "broken metrics"])
def test_what_passes_by_itself_is_waited_for(name: str) -> None:
    plant, _ = simulate(TRACES[name], Ours(), days=DAYS)
    assert len(plant.switches) <= 1
    assert oscillations(plant) == 0


@pytest.mark.parametrize(("name", "days"), [("diurnal", 0.5), ("neighbour", 1.2)])
def test_what_stays_is_followed(name: str, days: float) -> None:
    plant, _ = simulate(TRACES[name], Ours(), days=days)
    alone, _ = simulate(TRACES[name], Never(), days=days)
    assert plant.steps > alone.steps
    assert 1 - plant.steps / plant.oracle_steps < 0.025
    assert 1 <= len(plant.switches) <= 6 * days + 1
    assert oscillations(plant) == 0


def test_a_step_is_followed_by_one_switch_soon() -> None:
    at_s = HOUR_S
    trace = Trace(name="step", world_at=lambda time_s: World(length=60.0 if time_s > at_s else 20.0))
    plant, _ = simulate(trace, Ours(), days=0.2)
    ((when_s, _),) = plant.switches
    policy = Replanning()
    assert when_s - at_s < policy.window_seconds * 1.5 + policy.hold_seconds + 70 + 120


def test_a_planner_that_is_wrong_is_found_out_and_not_asked_for_the_same_again() -> None:
    ours = Ours()
    trace = Trace(name="step", world_at=lambda time_s: World(length=60.0 if time_s > HOUR_S else 20.0))
    plant, _ = simulate(trace, ours, days=0.4, curse=1.3)
    outcomes = [(outcome, reason) for _, outcome, reason in ours.outcomes]
    assert ("Reverting", "Ineffective") in outcomes
    assert ("Reverted", "Ineffective") in outcomes
    assert plant.plan == plant.switches[0][1]
    assert len(plant.switches) <= 4
    assert len(ours.state.refused) >= 1


def test_a_bare_threshold_and_flinks_rules_do_worse_where_metrics_lie_or_flicker() -> None:
    for name, policy in (("flicker", Threshold()), ("broken metrics", Flink())):
        other, _ = simulate(TRACES[name], policy, days=0.6)
        ours, _ = simulate(TRACES[name], Ours(), days=0.6)
        assert ours.steps > other.steps, name


WORLDS = st.lists(
    st.tuples(st.floats(1, 200), st.sampled_from([0.0, 0.3, 0.6]), st.sampled_from([0.0, 900.0])),
    min_size=1,
    max_size=5,
)
FAULTS = st.lists(
    st.sampled_from(["", "", "", "missing", "nan", "partial", "hanging", "other plan"]), min_size=1, max_size=5
)


@settings(max_examples=8, deadline=None)
@example(  # what comes and goes is judged by a long window, for which readings must be kept
    worlds=[(2.0, 0.0, 0.0), (1.0, 0.0, 0.0)],
    faults=[""],
    seed=0,
    window_s=120,
    interval_s=0,
    per_day=1,
    blackout=False,
)
@given(
    worlds=WORLDS,
    faults=FAULTS,
    seed=st.integers(0, 1000),
    window_s=st.sampled_from([60, 120, 300]),
    interval_s=st.sampled_from([0, 600, 3600]),
    per_day=st.integers(1, 4),
    blackout=st.booleans(),
)
def test_whatever_happens_the_bounds_of_the_spec_hold(
    worlds: list[tuple[float, float, float]],
    faults: list[str],
    seed: int,
    window_s: int,
    interval_s: int,
    per_day: int,
    blackout: bool,
) -> None:
    """Times between switches, switches a day, blackout; no decision on bad metrics; no change that never ends."""

    def world_at(time_s: float) -> World:
        length, neighbour, lag_s = worlds[int(time_s / 2500) % len(worlds)]
        return World(length=length, neighbour=neighbour, lag_s=lag_s)

    trace = Trace(
        name="any",
        world_at=world_at,
        fault_at=lambda time_s: faults[int(time_s / 1700) % len(faults)],  # type: ignore[arg-type,return-value]
    )
    policy = Replanning(
        window_seconds=window_s,
        min_interval_seconds=interval_s,
        max_per_day=per_day,
        stabilization_seconds=120,
        blackout=["0 2 * * */60"] if blackout else [],
    )
    ours = Ours(policy)
    plant = Plant(trace=trace, random=random.Random(seed))
    begun: list[float] = []
    ended_s = 0.0
    while plant.time_s < 0.2 * DAY_S:
        plant.advance()
        before = ours.state.change
        ours.look(plant, plant.reading())
        change = ours.state.change
        if before is None and change is not None:
            begun.append(plant.time_s)
            assert not (blackout and 2 * HOUR_S <= plant.time_s < 3 * HOUR_S)
        ended_s = plant.time_s if change is None else ended_s
        bad = (
            "hanging" in faults
            or "missing" in faults
            or "nan" in faults
            or "partial" in faults
            or "other plan" in faults
        )
        assert bad or plant.time_s - ended_s < 3 * HOUR_S
    for early_s, late_s in pairwise(begun):
        assert late_s - early_s >= interval_s
    assert len(begun) <= per_day
    for _, outcome, reason in ours.outcomes:
        assert outcome
        assert reason


def test_a_decision_is_the_same_for_the_same_world() -> None:
    first, second = Ours(), Ours()
    simulate(TRACES["diurnal"], first, days=0.2, seed=3)
    simulate(TRACES["diurnal"], second, days=0.2, seed=3)
    assert first.outcomes == second.outcomes
    assert first.state == second.state
