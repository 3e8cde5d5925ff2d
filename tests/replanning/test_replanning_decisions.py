"""One decision at a time: everything says yes, one thing says no, and the reason names it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from rap_contract.operations import Replanning, Triggers
from rap_contract.status import Refusal, Replans
from rap_operator.replanning.record import record
from rap_operator.replanning.values import EDITED, Ask, Forget, PutInForce, Reading, Store, Take
from replanning.judged_job import (
    BASELINE,
    NEW,
    NOW_S,
    OLD,
    POLICY,
    PROPOSAL,
    STATE,
    ago,
    changed,
    page,
    readings,
    verdict,
)


def policy(**parts: Any) -> Replanning:
    return POLICY.model_copy(update=parts)


def state(**parts: Any) -> Replans:
    return STATE.model_copy(update=parts)


def last(*pages: Any, error: str = "", asked: int = 2) -> tuple[Reading, ...]:
    """The usual readings with another newest one."""
    return (*readings()[:-1], Reading(at_s=2000.0, pages=pages, num_asked=asked, error=error))


def test_drift_that_is_worth_it_begins_a_change_that_is_stored_before_it_is_named() -> None:
    found = verdict()
    assert found.record is not None
    assert (found.record.outcome, found.record.reason) == ("Applying", "WorkloadDrift")
    assert found.record.numbers["gainRatio"] == pytest.approx(0.2)
    assert found.record.numbers["workloadDrift"] == pytest.approx(2.0)
    change = found.state.change
    assert change is not None
    assert (change.state, change.plan, change.before) == ("Applying", NEW, OLD)
    assert [type(act) for act in found.acts] == [Take, Store, Forget]
    assert found.condition[0] == "True"
    assert [notice.reason for notice in found.notices] == ["ReplanApplying"]


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "nothing read": ({"readings": ()}, "NoMetrics"),
    "nobody answers": ({"readings": last(error="refused")}, "NoMetrics"),
    "one rank missing": ({"readings": last(page(2000, 0), error="rank 1: timed out")}, "MetricsPartial"),
    "old": ({"now_s": 2200.0}, "MetricsStale"),
    "from the future": ({"now_s": 1000.0}, "MetricsStale"),
    "an earlier attempt's": ({"attempt": 2}, "MetricsStale"),
    "NaN": ({"readings": last(page(2000, 0, step_seconds=math.nan), page(2000, 1))}, "MetricsInvalid"),
    "infinite list": ({"readings": last(page(2000, 0, lists={"cat": math.inf}), page(2000, 1))}, "MetricsInvalid"),
    "negative": ({"readings": last(page(2000, 0, lag_s=-5.0), page(2000, 1))}, "MetricsInvalid"),
    "no counter": ({"readings": last(page(2000, 0, steps=None), page(2000, 1))}, "MetricsInvalid"),
    "a counter fell": ({"readings": last(page(2000, 0, steps=3.0), page(2000, 1))}, "MetricsInvalid"),
    "another plan": ({"readings": readings(plan=NEW)}, "OtherPlan"),
    "two plans": ({"readings": last(page(2000, 0), page(2000, 1, plan=NEW))}, "OtherPlan"),
    "just started": ({"readings": readings(count=6), "running_s": 150.0}, "Stabilizing"),
    "window not full": ({"readings": readings(count=3)}, "WindowNotFull"),
    "a hole": ({"readings": readings()[:20] + readings()[-2:]}, "WindowNotFull"),
    "no step": ({"readings": readings(steps=7.0)}, "WindowNotFull"),
}


@pytest.mark.parametrize("name", list(UNUSABLE))
def test_metrics_that_cannot_be_used_decide_nothing_and_say_why(name: str) -> None:
    parts, reason = UNUSABLE[name]
    found = verdict(**parts)
    assert found.condition[:2] == ("Unknown", reason)
    assert found.record is None
    assert found.acts == ()
    assert found.state == STATE


RARE_S = 150.0
"""Between readings of one of thousands of jobs: longer than a window is."""


def test_a_job_that_is_rarely_read_has_longer_windows() -> None:
    rare = policy(stabilization_seconds=0)
    few, enough = (verdict(policy=rare, readings=readings(count=count, every_s=RARE_S)) for count in (2, 3))
    assert few.condition[:2] == ("Unknown", "WindowNotFull")
    assert enough.record is not None
    assert enough.record.reason == "WorkloadDrift"


def test_a_rarely_read_job_has_no_window_over_a_reading_that_is_missing_and_is_not_stale_before_its_turn() -> None:
    rare = policy(stabilization_seconds=0)
    found = readings(count=12, every_s=RARE_S)
    assert verdict(policy=rare, readings=(*found[:-2], found[-1])).condition[:2] == ("Unknown", "WindowNotFull")
    assert verdict(policy=rare, readings=found, now_s=2000.0 + RARE_S).record is not None
    assert verdict(policy=rare, readings=found, now_s=2000.0 + 3 * RARE_S).condition[1] == "MetricsStale"


def test_two_readings_already_tell_how_rarely_a_job_is_read() -> None:
    rare, found = policy(stabilization_seconds=0), readings(count=2, every_s=RARE_S)
    assert verdict(policy=rare, readings=found, now_s=2000.0 + RARE_S).condition[1] == "WindowNotFull"
    assert verdict(policy=rare, readings=found, now_s=2000.0 + 3 * RARE_S).condition[1] == "MetricsStale"


HELD: dict[str, tuple[dict[str, Any], str]] = {
    "steady": ({"readings": readings(lists={"cat": 20.0})}, "Steady"),
    "below the bound": ({"readings": readings(lists={"cat": 21.5})}, "Steady"),
    "fired already": ({"state": state(fired=["WorkloadDrift"])}, "Steady"),
    "switched lately": ({"state": state(switches=[ago(100)])}, "MinInterval"),
    "searched lately": ({"state": state(searched_at=ago(100))}, "MinInterval"),
    "often today": ({"state": state(switches=[ago(3600 * n) for n in range(1, 13)])}, "DailyLimit"),
    "blackout": ({"policy": policy(blackout=["* * * * */5"])}, "Blackout"),
    "broken blackout": ({"policy": policy(blackout=["99 * * * */5"])}, "BadBlackout"),
    "new": ({"policy": policy(hold_seconds=60)}, "Holding"),
    "still changing": (
        {
            "readings": readings()[:-3]
            + tuple(replace(r, pages=tuple(replace(p, lists={"cat": 90.0}) for p in r.pages)) for r in readings()[-3:])
        },
        "Unsteady",
    ),
    "behind": ({"readings": readings(lag_s=400.0)}, "CatchingUp"),
    "nearly caught up": ({"readings": readings(lag_s=40.0), "state": state(catching_up=True)}, "CatchingUp"),
    "search failed": ({"proposal": replace(PROPOSAL, state="Failed", message="no memory")}, "SearchFailed"),
    "same plan": ({"proposal": replace(PROPOSAL, plan=OLD)}, "SamePlan"),
    "small gain": ({"proposal": replace(PROPOSAL, after_seconds=0.0099)}, "GainTooSmall"),
    "another machine's profile": ({"proposal": replace(PROPOSAL, indicative=True)}, "IndicativeProfile"),
    "a model that is wrong": (
        {"proposal": replace(PROPOSAL, before_seconds=0.05, after_seconds=0.03)},
        "Implausible",
    ),
    "tried before": (
        {"state": state(refused=[Refusal(shape="shape", reason="Ineffective", until=ago(-500))])},
        "KnownIneffective",
    ),
    "dear": ({"state": state(price_seconds=1000.0)}, "NotWorthIt"),
    "no place": ({"may_switch": False}, "LimitReached"),
}


@pytest.mark.parametrize("name", list(HELD))
def test_a_no_is_a_decision_with_its_reason_and_numbers(name: str) -> None:
    parts, reason = HELD[name]
    found = verdict(**parts)
    assert found.record is not None
    assert (found.record.outcome, found.record.reason) == ("None", reason), found.record.message
    assert found.record.numbers["stepSeconds"] == pytest.approx(0.01)
    assert found.state.change is None
    assert not any(isinstance(act, Store | PutInForce) for act in found.acts)


TRIGGERS: dict[str, tuple[dict[str, Any], str]] = {
    "exposed": ({"exposed_seconds": 0.0}, "ExposedPreprocessing"),
    "null share": ({"nulls": {"cat": 0.5}, "lists": {"cat": 20.0}}, "WorkloadDrift"),
    "capacity": ({"lists": {"cat": 20.0}, "capacity": {"output_dist": 0.001}}, "CapacityDrift"),
    "prediction": ({"lists": {"cat": 20.0}, "predicted_seconds": 0.006}, "PredictionError"),
    "freshness": ({"lists": {"cat": 20.0}, "freshness_s": 900.0, "lag_s": 900.0, "busy_ratio": 0.2}, "Freshness"),
}


@pytest.mark.parametrize("name", list(TRIGGERS))
def test_each_trigger_begins_a_search_by_itself(name: str) -> None:
    parts, trigger = TRIGGERS[name]
    rows = readings(**parts)
    if name == "exposed":
        rows = tuple(
            replace(r, pages=tuple(replace(p, lists={"cat": 20.0}, exposed_seconds=0.3 * r.at_s) for p in r.pages))
            for r in rows
        )
    baseline = BASELINE.model_copy(update={"capacity": {"output_dist": 0.003, "mlp_fwd": 0.001}})
    chosen = policy(triggers=Triggers(freshness_seconds=600), plausible_ratio=0.0)
    found = verdict(chosen, state(baseline=baseline), readings=rows, proposal=None)
    assert found.condition[1] == "Searching"
    assert found.condition[2].startswith(trigger)
    assert [type(act) for act in found.acts] == [Ask]


def test_a_job_of_another_size_is_searched_whatever_its_backlog() -> None:
    found = verdict(None, state(num_ranks=4), readings=readings(lag_s=5000.0), proposal=None)
    assert found.condition[:2] == ("False", "Searching")
    assert found.state.stable == ""


def test_the_first_full_window_is_searched_once() -> None:
    found = verdict(None, Replans(), in_force="", stored=frozenset(), proposal=replace(PROPOSAL, plan=OLD))
    assert found.record is not None
    assert found.record.reason == "SamePlan"
    assert found.state.baseline is not None
    again = verdict(None, found.state, in_force="", stored=frozenset(), proposal=None, wall_s=NOW_S + 5000)
    assert again.record is not None
    assert again.record.reason == "Steady"


def test_a_trigger_fires_again_only_after_it_has_calmed_down() -> None:
    for value, still in ((60.0, True), (21.8, True), (21.5, False)):
        found = verdict(None, state(fired=["WorkloadDrift"]), readings=readings(lists={"cat": value}))
        assert (found.state.fired == ["WorkloadDrift"]) is still, value


def test_what_was_not_worth_it_is_searched_again_when_it_drifts_on_from_there() -> None:
    found = verdict(proposal=replace(PROPOSAL, after_seconds=0.0099))
    assert found.record is not None
    assert found.record.reason == "GainTooSmall"
    assert found.state.fired == []
    assert found.state.baseline is not None
    assert found.state.baseline.workload["cat"].mean_list_length == pytest.approx(60.0)
    later = found.state.model_copy(update={"searched_at": ago(5000), "over_since": ago(5000)})
    again = verdict(None, later, readings=readings(lists={"cat": 80.0}), proposal=None)
    assert any(isinstance(act, Ask) for act in again.acts)


# --- a change under way


def test_a_plan_is_handed_over_until_it_is_there_and_counts_when_all_ranks_run_it() -> None:
    handed = verdict(None, changed("Applying"))
    assert handed.acts == (PutInForce(plan=NEW, why="WorkloadDrift"),)
    waiting = verdict(None, changed("Applying"), in_force=NEW)
    assert (waiting.acts, waiting.record) == ((), None)
    half = last(page(2000, 0, plan=NEW), page(2000, 1))
    assert verdict(None, changed("Applying"), in_force=NEW, readings=half).record is None
    both = last(page(2000, 0, plan=NEW), page(2000, 1, plan=NEW))
    taken = verdict(None, changed("Applying"), in_force=NEW, readings=both)
    assert taken.record is not None
    assert taken.record.outcome == "Switched"
    assert taken.state.change is not None
    assert (taken.state.change.state, len(taken.state.switches)) == ("Verifying", 1)


def test_ranks_that_say_nothing_are_waited_for_before_their_plan_is_withdrawn() -> None:
    silent = verdict(None, changed("Applying", since_s=400), in_force=NEW, readings=last(error="refused"))
    assert silent.record is None
    assert silent.state.change is not None
    assert silent.state.change.state == "Applying"


def test_a_rank_that_says_it_runs_a_plan_nobody_handed_out_says_nothing() -> None:
    lying = last(page(2000, 0, plan=NEW), page(2000, 1, plan="c" * 16))
    odd = verdict(None, changed("Applying", since_s=400), in_force=NEW, readings=lying)
    assert odd.record is None
    late = verdict(
        None, changed("Applying", since_s=400), in_force=NEW, readings=last(page(2000, 0, plan=NEW), page(2000, 1))
    )
    assert late.record is not None
    assert late.record.reason == "NotTaken"


def test_a_promise_within_the_noise_of_a_window_is_not_held_against_a_plan() -> None:
    for promised, outcome in ((0.03, "Confirmed"), (0.039, "Confirmed"), (0.2, "Reverting")):
        state_ = changed("Verifying", since_s=1000, promised_ratio=promised)
        found = verdict(None, state_, in_force=NEW, readings=readings(plan=NEW))
        assert found.record is not None
        assert found.record.outcome == outcome, promised


RETURNS: dict[str, tuple[Replans, dict[str, Any], str]] = {
    "refused": (
        changed("Applying"),
        {"readings": last(page(2000, 0, refused=(NEW, "no memory")), page(2000, 1))},
        "Refused",
    ),
    "not taken": (changed("Applying", since_s=301), {}, "NotTaken"),
    "not told for long": (
        changed("Applying", since_s=300 * 15 + 1),
        {"readings": last(error="refused")},
        "NotTaken",
    ),
    "job fails": (changed("Applying"), {"failures": 2}, "JobFails"),
    "job fails later": (changed("Verifying", since_s=1000), {"failures": 2}, "JobFails"),
    "ineffective": (changed("Verifying", since_s=1000), {"readings": readings(plan=NEW)}, "Ineffective"),
}


@pytest.mark.parametrize("name", list(RETURNS))
def test_a_plan_that_does_not_serve_is_returned_from_and_remembered(name: str) -> None:
    before, parts, reason = RETURNS[name]
    found = verdict(None, before, in_force=NEW, **parts)
    assert found.record is not None
    assert (found.record.outcome, found.record.reason) == ("Reverting", reason)
    assert [refusal.shape for refusal in found.state.refused] == ["shape"]
    assert found.notices[0].level == "Warning"
    back = verdict(None, found.state, in_force=NEW)
    assert back.acts == (PutInForce(plan=OLD, why=reason),)
    done = verdict(None, found.state, in_force=OLD)
    assert done.record is not None
    assert (done.record.outcome, done.state.change, done.state.stable) == ("Reverted", None, OLD)


def test_a_plan_that_delivers_is_the_stable_one_and_its_price_is_learned() -> None:
    before = readings(until_s=1400, count=5)
    fast: dict[str, Any] = {"plan": NEW, "stall_seconds": 2.5}
    after = tuple(
        replace(r, pages=tuple(replace(p, steps=125.0 * r.at_s) for p in r.pages))
        for r in readings(until_s=2000, count=20, **fast)
    )
    found = verdict(None, changed("Verifying", since_s=590), in_force=NEW, readings=before + after)
    assert found.record is not None
    assert (found.record.outcome, found.record.reason) == ("Confirmed", "Effective"), found
    assert (found.state.stable, found.state.change, found.state.price_seconds) == (NEW, None, 2.5)


def test_data_that_changes_meanwhile_proves_nothing_against_a_plan() -> None:
    found = verdict(
        None, changed("Verifying", since_s=1000), in_force=NEW, readings=readings(plan=NEW, lists={"cat": 200.0})
    )
    assert found.record is not None
    assert (found.record.outcome, found.record.reason) == ("Confirmed", "NotComparable")


# --- the ConfigMap


@pytest.mark.parametrize("in_force", [EDITED, NEW, ""])
def test_a_config_map_edited_by_hand_is_put_back(in_force: str) -> None:
    found = verdict(in_force=in_force)
    assert found.acts == (PutInForce(plan=OLD, why="mended"),)
    assert found.notices[0].reason == "PlanMended"


def test_a_plan_that_is_nowhere_any_more_is_searched_anew() -> None:
    found = verdict(in_force=EDITED, stored=frozenset({NEW}))
    assert found.record is not None
    assert found.record.outcome == "PlanLost"
    assert (found.state.stable, found.state.baseline) == ("", None)


FAILURES = {"once": (0.0, 600.0), "twice": (600.0, 3600.0), "for days": (2e5, 3600.0)}
"""For how long searches had been failing when the last one did, and seconds from then until the next."""


@pytest.mark.parametrize("name", list(FAILURES))
def test_searches_that_go_on_failing_are_made_ever_more_rarely_and_say_nothing_new(name: str) -> None:
    failing_s, wait_s = FAILURES[name]
    for since_s, is_due in ((wait_s - 1, False), (wait_s + 1, True)):
        failed = record("None", "SearchFailed", "no profile", now_s=NOW_S - since_s - failing_s)
        found = verdict(None, state(searched_at=ago(since_s)), history=(failed,), proposal=None)
        assert [type(act) for act in found.acts] == ([Ask] if is_due else [])
        assert found.record is None
        assert found.condition[1:] == ("SearchFailed", "no profile")


def test_an_attempt_that_began_after_a_search_failed_need_not_wait_longer_for_it() -> None:
    failed = record("None", "SearchFailed", "no profile", now_s=NOW_S - 9000)
    found = verdict(None, state(searched_at=ago(2000)), history=(failed,), proposal=None, running_s=1500.0)
    assert [type(act) for act in found.acts] == [Ask]


# --- clocks


@pytest.mark.parametrize("jump_s", [-30 * 86_400.0, -3600.0])
def test_a_clock_set_back_holds_nothing_up_for_longer_than_it_was_to_last(jump_s: float) -> None:
    now_s = NOW_S + jump_s
    before = state(switches=[ago(1000)], searched_at=ago(1000))
    first = verdict(None, before, wall_s=now_s)
    assert first.record is not None
    assert first.record.reason == "MinInterval"
    later = verdict(None, first.state, wall_s=now_s + 601)
    assert later.state.change is not None
    waiting = verdict(None, changed("Applying"), wall_s=now_s, in_force=NEW)
    assert waiting.state.change is not None
    timed_out = verdict(None, waiting.state, wall_s=now_s + 301, in_force=NEW)
    assert timed_out.record is not None
    assert timed_out.record.reason == "NotTaken"


def test_a_clock_set_forward_makes_no_window_full() -> None:
    before = readings(until_s=1940, count=5)
    after = readings(until_s=2000, count=2, plan=NEW)
    found = verdict(None, changed("Verifying", since_s=86_400), in_force=NEW, readings=before + after)
    assert found.record is None
    assert found.condition[2] == "Stabilizing"
