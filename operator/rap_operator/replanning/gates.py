"""What holds up a switch that would be worth it: gates, in the order in which they are told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rap_contract.operations import Replanning
from rap_contract.status import ReplanRecord, Replans, time_s

from rap_operator.replanning import blackout
from rap_operator.replanning.triggers import MANDATORY, Trigger
from rap_operator.replanning.values import Proposal, Window

DAY_S = 86_400.0
# What searches that go on failing lack (a profile, memory) is for a person to bring, most often by another spec and so
# another attempt. Each try is a write to the API server: a thousand jobs without a profile make 17 a minute.
FAILED_AGAIN_S = 3600.0
TURNS_S, MAX_DOUBLINGS = (
    7200.0,
    3,
)  # in 30 simulated days of a diurnal drift two of 130 switches were turns within so long
CAUGHT_UP = 0.1  # of maxLagSeconds: a backlog that was over it once is worked off only then


@dataclass(frozen=True, kw_only=True)
class Held:
    """Why there is no search or no switch now."""

    reason: str
    message: str
    wait_s: float | None = None


def before_search(policy: Replanning, state: Replans, trigger: Trigger, now_s: float) -> Held | None:
    """What makes a search of a window that is steady pointless now."""
    held = _window_of_time(policy, now_s) or _holding(policy, state, trigger, now_s)
    if held is not None:
        return held
    for name, moment in (("switch", _last(state.switches)), ("search", state.searched_at)):
        if moment is not None:
            left_s = time_s(moment) + policy.min_interval_seconds - now_s
            if left_s > 0:
                return Held(reason="MinInterval", message=f"the last {name} was a while ago only", wait_s=left_s)
    today = [moment for moment in state.switches if now_s - time_s(moment) < DAY_S]
    if len(today) >= policy.max_per_day:
        left_s = time_s(today[-1]) + DAY_S - now_s
        return Held(reason="DailyLimit", message=f"{len(today)} switches in 24 hours", wait_s=left_s)
    if state.catching_up and trigger.name not in MANDATORY:
        return Held(reason="CatchingUp", message="the stream works off a backlog")
    return None


def after_failure(
    policy: Replanning, state: Replans, last: ReplanRecord | None, *, running_s: float, now_s: float
) -> Held | None:
    """Searches of this attempt fail: after the second in a row there is one an hour. `last`: decision."""
    if last is None or last.reason != "SearchFailed" or state.searched_at is None:
        return None
    searched_s = time_s(state.searched_at)
    is_first = searched_s - time_s(last.first or last.time) < max(policy.min_interval_seconds / 2, 1.0)
    left_s = searched_s + max(policy.min_interval_seconds, 0.0 if is_first else FAILED_AGAIN_S) - now_s
    is_of_now = now_s - searched_s < running_s
    return Held(reason=last.reason, message=last.message, wait_s=left_s) if left_s > 0 and is_of_now else None


def before_switch(policy: Replanning, state: Replans, proposal: Proposal, window: Window, now_s: float) -> Held | None:
    """What makes a found plan no better than the one in force."""
    gain, bound = proposal.gain_ratio, asked_for(policy, state, now_s)
    if proposal.plan == proposal.before:
        return Held(reason="SamePlan", message="the plan in force is the best one for the data of today")
    if proposal.indicative:
        message = "predicted from a profile of another machine or model; `rap profile` makes one of this"
        return Held(reason="IndicativeProfile", message=message)
    if gain < bound:
        return Held(reason="GainTooSmall", message=f"{100 * gain:.2f} % predicted, {100 * bound:.2f} % asked for")
    error = implausibility(state, proposal, window)
    if 0 < policy.plausible_ratio < error:
        message = (
            f"for the data of today the plan in force should take {1e3 * proposal.before_seconds:.3f} ms a step, "
            f"{1e3 * window.step_seconds:.3f} ms are measured: model or metrics are wrong"
        )
        return Held(reason="Implausible", message=message)
    refused = next(
        (r for r in state.refused if r.shape == (proposal.shape or proposal.plan) and time_s(r.until) > now_s), None
    )
    if refused is not None:
        return Held(reason="KnownIneffective", message=f"plan {proposal.plan} was tried: {refused.reason}")
    price_s = price(policy, state)
    worth_s = gain * policy.payback_seconds
    if worth_s <= price_s:
        message = f"{worth_s:.1f} s gained in {policy.payback_seconds} s, the switch costs {price_s:.1f} s"
        return Held(reason="NotWorthIt", message=message)
    return None


def asked_for(policy: Replanning, state: Replans, now_s: float) -> float:
    """The gain a switch must promise: twice as much after each one of the last two hours, or a drift that turns is followed to and fro."""
    lately = sum(now_s - time_s(moment) < TURNS_S for moment in state.switches)
    return min(policy.threshold * 2.0 ** min(lately, MAX_DOUBLINGS), 1.0)


def implausibility(state: Replans, proposal: Proposal, window: Window) -> float:
    """By which share the larger of the measured and the predicted step exceeds the other, a known error taken out."""
    known = state.baseline.prediction_ratio if state.baseline is not None and not proposal.corrected else None
    if proposal.before_seconds <= 0:
        return 0.0
    ratio = window.step_seconds / proposal.before_seconds / (known or 1.0)
    return max(ratio, 1 / ratio) - 1


def price(policy: Replanning, state: Replans) -> float:
    """Training seconds that a switch costs: measured, else assumed."""
    return policy.price_seconds if state.price_seconds is None else state.price_seconds


def price_after(state: Replans, stall_s: float) -> float:
    """The price with one more switch measured."""
    return stall_s if state.price_seconds is None else 0.5 * state.price_seconds + 0.5 * stall_s


def _window_of_time(policy: Replanning, now_s: float) -> Held | None:
    try:
        window = blackout.active(policy.blackout, now_s)
    except blackout.BadBlackout as error:
        return Held(reason="BadBlackout", message=f"{error}; nothing is switched until it is mended")
    if window is not None:
        return Held(reason="Blackout", message=f"inside the window {window}", wait_s=60.0)
    return None


def _holding(policy: Replanning, state: Replans, trigger: Trigger, now_s: float) -> Held | None:
    if trigger.is_asked_for or state.over_since is None:
        return None
    left_s = time_s(state.over_since) + policy.hold_seconds - now_s
    if left_s <= 0:
        return None
    return Held(reason="Holding", message=f"it may pass by itself within {policy.hold_seconds} s", wait_s=left_s)


def catching_up(policy: Replanning, state: Replans, window: Window) -> bool:
    """Whether the stream works off a backlog: data of the past, no reason for an optional switch."""
    if window.lag_s is None:
        return False
    bound = policy.max_lag_seconds * (CAUGHT_UP if state.catching_up else 1.0)
    return window.lag_s > bound


def _last(switches: list[str]) -> str | None:
    return switches[0] if switches else None
