"""No change is under way: the window is judged, a plan searched, and a change begun if that is worth it. Pure."""

from __future__ import annotations

import hashlib

from rap_contract.status import Baseline, Change, Refusal, time_text

from rap_operator.replanning import gates, mix, triggers
from rap_operator.replanning.case import Case
from rap_operator.replanning.triggers import Trigger
from rap_operator.replanning.values import Act, Ask, Forget, Proposal, Store, Take, Unusable, Verdict, Window
from rap_operator.replanning.window import reduced

MAX_REFUSED = 32
TURN_S = 300.0  # a job that waits for a place is woken when it has one (`replanner.py`); this is for an operator that forgot it
MAX_KEPT = 12  # plans in the ConfigMap at most, for a return and for `rap plan --diff`


def advance(case: Case) -> Verdict:
    """Looks for a reason, then for a plan, then whether it may be taken."""
    seen = case.seen
    if not seen.is_running:
        return case.quiet("False", "NotRunning", "no attempt runs")
    case = _adopted(case)
    plan = case.state.stable if case.state.baseline is not None and case.state.stable else None
    window = reduced(case.policy, seen, plan=plan, since_s=seen.running_s)
    if isinstance(window, Unusable):
        return case.quiet("Unknown", window.reason, window.message, wake_s=window.wait_s)
    reported = seen.readings[-1].plan or ""
    case = case.with_state(catching_up=gates.catching_up(case.policy, case.state, window))
    case, trigger, numbers = _trigger(case, window)
    case = mix.noticed(case, window, is_over=trigger is not None)
    if mix.has_lasted(case) and (wide := mix.steady(case, window)) is not None:
        window = wide
        case, trigger, numbers = _trigger(case.with_state(over_since=case.state.restless_since), window)
    if trigger is None:
        case = case.with_state(stable=case.state.stable or reported, over_since=None)
        return case.decided("None", "Steady", "no trigger is over its bound", plans=(reported, ""), numbers=numbers)
    if case.state.over_since is None:
        case = case.with_state(over_since=time_text(case.now_s))
    if trigger.name != triggers.REQUEST and seen.proposal is None:
        last = case.history[0] if case.history else None
        failed = gates.after_failure(case.policy, case.state, last, running_s=seen.running_s, now_s=case.now_s)
        if failed is not None:
            return case.quiet("False", failed.reason, failed.message, wake_s=failed.wait_s)
    held = mix.unsteady(case, window) or gates.before_search(case.policy, case.state, trigger, case.now_s)
    if held is not None:
        message = f"{trigger.text}, but {held.message}"
        return case.decided("None", held.reason, message, plans=(reported, ""), numbers=numbers, wake_s=held.wait_s)
    return _searched(case, window, trigger, numbers=numbers, reported=reported)


def _adopted(case: Case) -> Case:
    """Ranks that could not run the stable plan at their start run their own: that one is in force."""
    state, readings = case.state, case.seen.readings
    if not state.stable or not readings or not readings[-1].is_complete:
        return case
    refused = {page.refused[0] for page in readings[-1].pages if page.refused is not None}
    reported = readings[-1].plan
    if state.stable in refused and reported is not None and reported != state.stable:
        return case.with_state(stable="", baseline=None, fired=[], searched_at=None)
    return case


def _trigger(case: Case, window: Window) -> tuple[Case, Trigger | None, dict[str, float | None]]:
    """The trigger that counts, if one does, and the numbers of all."""
    numbers: dict[str, float | None] = {
        "stepSeconds": window.step_seconds,
        "exposedRatio": window.exposed_ratio,
        "predictionRatio": window.prediction_ratio,
        "lagSeconds": window.lag_s,
    }
    if case.command == "refresh":
        return case, Trigger(name=triggers.REQUEST, value=1.0, bound=0.5), numbers
    if case.state.baseline is None:
        # The plan was made before anything of the data was known.
        name = triggers.SIZE if triggers.SIZE in case.state.fired else triggers.FIRST
        return case, Trigger(name=name, value=1.0, bound=0.5), numbers
    found = triggers.measured(case.policy, window, case.state.baseline)
    numbers |= {f"{each.name[0].lower()}{each.name[1:]}": each.value for each in found if each.bound > 0}
    fired = triggers.calmed(case.state.fired, found, case.policy.hysteresis)
    case = case.with_state(fired=fired)
    return case, next((each for each in found if each.is_over and each.name not in fired), None), numbers


def _searched(
    case: Case, window: Window, trigger: Trigger, *, numbers: dict[str, float | None], reported: str
) -> Verdict:
    proposal = case.seen.proposal
    if proposal is not None and proposal.state == "Done" and proposal.before != reported:
        return _searching(case, trigger).doing(Forget())
    if proposal is None:
        ask = Ask(request=_key(window.measured, reported), measured=window.measured)
        return _searching(case, trigger).doing(ask)
    if proposal.state == "Running":
        return _searching(case, trigger)
    case = case.answered() if trigger.name == triggers.REQUEST else case
    if proposal.state == "Failed":
        failed = case.with_state(searched_at=time_text(case.now_s))
        return failed.decided(
            "None", "SearchFailed", proposal.message, plans=(reported, ""), numbers=numbers, acts=(Forget(),)
        )
    numbers |= {
        "predictedBeforeSeconds": proposal.before_seconds,
        "predictedAfterSeconds": proposal.after_seconds,
        "gainRatio": proposal.gain_ratio,
        "priceSeconds": gates.price(case.policy, case.state),
    }
    plans = (reported, proposal.plan)
    held = gates.before_switch(case.policy, case.state, proposal, window, case.now_s)
    if held is not None or case.policy.mode == "Observe":
        if held is not None and held.reason == "Implausible":  # nothing to count drift from
            told = case.with_state(searched_at=time_text(case.now_s))
        else:
            told = _judged(case, window, trigger, reported=reported)
        outcome = "None" if held is not None else "WouldSwitch"
        reason = held.reason if held is not None else trigger.name
        message = f"{trigger.text}: {held.message}" if held is not None else _offer(trigger, proposal)
        acts: tuple[Act, ...] = (*_restored(case, proposal), Forget())
        return told.decided(outcome, reason, message, plans=plans, numbers=numbers, acts=acts)
    if case.policy.mode == "Auto" and not case.seen.may_switch:
        message = "as many jobs as may are switching; this one waits for its turn"
        return case.decided("None", "LimitReached", message, plans=plans, numbers=numbers, wake_s=TURN_S)
    return _begun(case, window, trigger, proposal, numbers=numbers)


def _searching(case: Case, trigger: Trigger) -> Verdict:
    """Another try of a search that failed says nothing new until it ends: that would be two writes for one."""
    if case.history and case.history[0].reason == "SearchFailed":
        return case.quiet("False", "SearchFailed", case.history[0].message)
    return case.quiet("False", "Searching", trigger.text)


def _restored(case: Case, proposal: Proposal) -> tuple[Store, ...]:
    """The plan in force is lost from the ConfigMap: the ranks have told it to the search."""
    if not case.state.handed or proposal.fallback in case.seen.stored or proposal.fallback != proposal.before:
        return ()
    return (Store(request=proposal.request, keep=(proposal.fallback,)),)


def _judged(case: Case, window: Window, trigger: Trigger, *, reported: str) -> Case:
    """The data of today was searched: drift counts from here, and a trigger that does not must calm down first."""
    is_drift = trigger.name in triggers.DRIFTS
    fired = case.state.fired if is_drift else list(dict.fromkeys((*case.state.fired, trigger.name)))
    return case.with_state(
        searched_at=time_text(case.now_s), baseline=window.measured, fired=fired, stable=case.state.stable or reported
    )


def _begun(
    case: Case,
    window: Window,
    trigger: Trigger,
    proposal: Proposal,
    *,
    numbers: dict[str, float | None],
) -> Verdict:
    is_auto = case.policy.mode == "Auto"
    change = Change(
        state="Applying" if is_auto else "Proposed",
        plan=proposal.plan,
        shape=proposal.shape or proposal.plan,
        before=proposal.fallback,
        trigger=trigger.name,
        since=time_text(case.now_s),
        promised_ratio=proposal.gain_ratio,
        step_seconds=window.step_seconds,
        attempt=case.seen.attempt,
        baseline=window.measured,
    )
    earlier = [name for record in case.history for name in (record.plan, record.before)]
    known = [change.plan, change.before, case.state.stable, *earlier]
    store = Store(request=proposal.request, keep=tuple(dict.fromkeys(name for name in known if name))[:MAX_KEPT])
    begun = case.with_state(change=change)
    return begun.decided(
        "Applying" if is_auto else "Proposed",
        trigger.name,
        _offer(trigger, proposal)
        + ("" if is_auto else f"; annotate rap.dev/replan=approve:{proposal.plan}, reject:... or refresh:..."),
        plans=(proposal.before, proposal.plan),
        numbers=numbers,
        acts=(Take(), store, Forget()),
        wake_s=0.1,
    )


def refused(case: Case, shape: str, reason: str) -> list[Refusal]:
    """The plans not tried again for a while, with one more."""
    until = time_text(case.now_s + case.policy.remember_seconds)
    others = [refusal for refusal in case.state.refused if refusal.shape != shape]
    return [Refusal(shape=shape, reason=reason[:253], until=until), *others][:MAX_REFUSED]


def _offer(trigger: Trigger, proposal: Proposal) -> str:
    return (
        f"{trigger.text}: plan {proposal.plan} instead of {proposal.before or 'the default'}, predicted step "
        f"{1e3 * proposal.before_seconds:.3f} -> {1e3 * proposal.after_seconds:.3f} ms "
        f"({-100 * proposal.gain_ratio:+.1f} %)"
    )


def _key(measured: Baseline, reported: str) -> str:
    return hashlib.sha256(f"{reported}{measured.model_dump_json()}".encode()).hexdigest()[:16]
