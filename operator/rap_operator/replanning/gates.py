"""What holds up a switch that would be worth it: gates, in the order in which they are told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rap_contract.operations import Replanning
from rap_contract.status import Replans, time_s

from rap_operator.replanning import blackout
from rap_operator.replanning.triggers import MANDATORY, Trigger
from rap_operator.replanning.values import Proposal, Window

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Held:
    """Why there is no search or no switch now."""

    reason: str
    message: str
    wait_s: float | None = None


def before_search(
    policy: Replanning, state: Replans, window: Window | None, trigger: Trigger, now_s: float
) -> Held | None:
    """What makes a search pointless now."""
    held = _window_of_time(policy, now_s)
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
    if window is not None and trigger.name not in MANDATORY:
        return _catching_up(policy, window)
    return None


def before_switch(policy: Replanning, state: Replans, proposal: Proposal, now_s: float) -> Held | None:
    """What makes a found plan no better than the one in force."""
    gain, bound = proposal.gain_ratio, policy.threshold
    if proposal.plan == proposal.before:
        return Held(reason="SamePlan", message="the plan in force is the best one for the data of today")
    if proposal.indicative:
        message = "predicted from a profile of another machine or model; `rap profile` makes one of this"
        return Held(reason="IndicativeProfile", message=message)
    if gain < bound:
        return Held(reason="GainTooSmall", message=f"{100 * gain:.2f} % predicted, {100 * bound:.2f} % asked for")
    refused = next((r for r in state.refused if r.hash == proposal.plan and time_s(r.until) > now_s), None)
    if refused is not None:
        return Held(reason="KnownIneffective", message=f"plan {refused.hash} was tried: {refused.reason}")
    price_s = price(policy, state)
    worth_s = gain * policy.payback_seconds
    if worth_s <= price_s:
        message = f"{worth_s:.1f} s gained in {policy.payback_seconds} s, the switch costs {price_s:.1f} s"
        return Held(reason="NotWorthIt", message=message)
    return None


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


def _catching_up(policy: Replanning, window: Window) -> Held | None:
    if window.lag_s is not None and window.lag_s > policy.max_lag_seconds:
        message = f"the stream is {window.lag_s:.0f} s behind, {policy.max_lag_seconds} s allowed"
        return Held(reason="CatchingUp", message=message)
    return None


def _last(switches: list[str]) -> str | None:
    return switches[0] if switches else None
