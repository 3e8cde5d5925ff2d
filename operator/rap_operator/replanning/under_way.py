"""A change of plan is under way: proposed, handed over, judged, confirmed or returned from. Pure."""

from __future__ import annotations

from rap_contract.status import Change, time_text

from rap_operator.replanning import gates, mix, triggers
from rap_operator.replanning.case import Case
from rap_operator.replanning.idle import TURN_S, refused
from rap_operator.replanning.values import PutInForce, Take, Unusable, Verdict, Window
from rap_operator.replanning.window import reduced, widened

MAX_FAILURES = 2  # ends of attempts as failures under a plan that was never proven
SILENT = 15  # times confirmSeconds: ranks whose metrics cannot be read may well run the plan, and another change would be blind
NOISE = 0.01  # of the step: means of two windows of a steady job differ by less, 2 % noise of a reading taken (tests/simulator)
DOUBT = 0.04  # by which a plan must fall short: at 2 % noise of a reading two windows' means differ by 1.4 % (one sigma), and gains are small
MIXED_NOISE = 0.1  # the same of a mix: its halves may have it in shares that differ by the capacity's bound (tests/simulator: up to 8 %)
SAME_DATA = 0.25  # drift of the workload beyond which before and after cannot be compared, where no trigger says


def advance(case: Case) -> Verdict:
    """Takes the change one state further."""
    change = case.state.change
    assert change is not None
    match change.state:
        case "Proposed":
            return _proposed(case, change)
        case "Applying":
            return _applying(case, change)
        case "Verifying":
            return _verifying(case, change)
        case "Reverting":
            return _reverting(case, change)


def _proposed(case: Case, change: Change) -> Verdict:
    """Waits for the annotation; a mode that was changed to Auto is an answer too."""
    plans = (change.before, change.plan)
    command = case.command if case.seen.about in ("", change.plan) or case.command == "refresh" else ""
    dropped = case.with_state(change=None)
    if change.plan not in case.seen.stored:
        return dropped.decided("Dropped", "ProposalLost", "its plan is no longer stored", plans=plans)
    if command == "reject":
        rejected = case.answered().with_state(change=None, refused=refused(case, change.shape, "Rejected"))
        judged = rejected.with_state(baseline=change.baseline, searched_at=time_text(case.now_s))
        return judged.decided("Rejected", "Annotated", "rejected by annotation", plans=plans)
    if command == "refresh":  # not answered: the search that follows is its answer
        return dropped.decided("Dropped", "Annotated", "a new search was asked for", plans=plans, wake_s=0.1)
    if case.policy.mode == "Observe":
        return dropped.decided("Dropped", "ModeChanged", "the mode is Observe now", plans=plans)
    if command == "approve" or case.policy.mode == "Auto":
        if not case.seen.may_switch:
            return case.quiet("True", "Proposed", "approved; waits for its turn", wake_s=TURN_S)
        approved = case.answered().begun(change, state="Applying")
        how = "approved by annotation" if command else "the mode is Auto now"
        return approved.decided("Applying", "Approved", how, plans=plans, acts=(Take(),), wake_s=0.1)
    left_s = case.policy.proposal_seconds - case.since_s(change.since)
    if left_s <= 0:
        return dropped.decided("Dropped", "ProposalExpired", "nobody answered it", plans=plans)
    return case.quiet("True", "Proposed", f"plan {change.plan} waits for an answer", wake_s=left_s)


def _applying(case: Case, change: Change) -> Verdict:
    """The plan is handed to the ranks, which switch together or not at all."""
    plans = (change.before, change.plan)
    if case.seen.in_force != change.plan:
        if change.plan not in case.seen.stored:
            lost = case.with_state(change=None)
            return lost.decided("Dropped", "ProposalLost", "its plan is no longer stored", plans=plans)
        return case.quiet("True", "Applying", f"plan {change.plan} is handed to the ranks", wake_s=1.0).doing(
            PutInForce(plan=change.plan, why=change.trigger)
        )
    trouble = _trouble(case, change)
    if trouble is not None:
        return trouble
    if _all_report(case, change.plan):
        switches = [time_text(case.now_s), *case.state.switches][:1000]
        taken = case.begun(change, state="Verifying", attempt=case.seen.attempt).with_state(
            switches=switches, handed=True
        )
        message = f"all ranks run plan {change.plan} after {case.since_s(change.since):.1f} s"
        numbers: dict[str, float | None] = {"secondsToSwitch": case.since_s(change.since)}
        return taken.decided("Switched", change.trigger, message, plans=plans, numbers=numbers)
    patience_s = case.policy.confirm_seconds * (1 if _is_told(case, change) else SILENT)
    left_s = patience_s - case.since_s(change.since)
    if left_s <= 0 and case.seen.is_running:
        return _return(case, change, "NotTaken", f"not all ranks run it after {patience_s} s")
    return case.quiet("True", "Applying", f"plan {change.plan} is handed to the ranks", wake_s=max(left_s, 1.0))


def _verifying(case: Case, change: Change) -> Verdict:
    """The plan is in force; whether it holds its promise is judged on a full window after stabilisation."""
    trouble = _trouble(case, change)
    if trouble is not None:
        return trouble
    if not case.seen.is_running:
        return case.quiet("True", "Verifying", "waits for the ranks")
    since_s = min(case.since_s(change.since), case.seen.running_s)
    window = reduced(case.policy, case.seen, plan=change.plan, since_s=since_s)
    if isinstance(window, Unusable):
        return case.quiet("True", "Verifying", window.reason, wake_s=window.wait_s)
    if not mix.has_lasted(case):
        return _judged(case, change, window, noise=NOISE)
    wide = widened(window)
    if wide is None:
        return case.quiet("True", "Verifying", "WindowNotFull")
    return _judged(case, change, wide, noise=MIXED_NOISE)


def _judged(case: Case, change: Change, window: Window, *, noise: float) -> Verdict:
    before_s, promised = change.step_seconds, change.promised_ratio
    gained = 1 - window.step_seconds / before_s if before_s else 0.0
    _, drift = triggers.workload_drift(change.baseline.workload, window.measured.workload)
    bound = case.policy.triggers.workload_ratio or SAME_DATA
    is_comparable = before_s is not None and drift <= bound
    numbers: dict[str, float | None] = {
        "stepSeconds": window.step_seconds,
        "stepSecondsBefore": before_s,
        "promisedRatio": promised,
        "gainedRatio": gained,
        "stallSeconds": window.stall_seconds,
    }
    is_less = gained < case.policy.effectiveness * promised - noise and promised - gained > DOUBT
    if is_comparable and promised > 0 and is_less:
        message = f"{100 * gained:.1f} % gained, {100 * promised:.1f} % promised"
        return _return(case, change, "Ineffective", message, numbers=numbers)
    price = gates.price_after(case.state, window.stall_seconds)
    # Drift counts from the data the plan was made for, not from that of its proof.
    baseline = change.baseline.model_copy(update={"prediction_ratio": window.prediction_ratio})
    proven = case.with_state(
        change=None, stable=change.plan, baseline=baseline, fired=[], over_since=None, price_seconds=price
    )
    if is_comparable:
        reason, message = "Effective", f"{100 * gained:.1f} % gained, {100 * promised:.1f} % promised"
    else:
        reason, message = "NotComparable", f"the data has changed by {100 * drift:.0f} % meanwhile"
    return proven.decided("Confirmed", reason, message, plans=(change.before, change.plan), numbers=numbers)


def _reverting(case: Case, change: Change) -> Verdict:
    """The plan before is handed back; until all ranks run it, that is asked for again and again."""
    plans = (change.plan, change.before)
    if case.seen.in_force != change.before:
        if change.before not in case.seen.stored:
            lost = case.with_state(change=None, stable="", baseline=None)
            return lost.decided("PlanLost", "ConfigMapEdited", "the plan to return to is no longer stored", plans=plans)
        return case.quiet("True", "Reverting", change.reason, wake_s=1.0).doing(
            PutInForce(plan=change.before, why=change.reason)
        )
    if _all_report(case, change.before) or _never_left(case, change):
        fired = list(dict.fromkeys((*case.state.fired, change.trigger)))
        back = case.with_state(
            handed=True,
            change=None,
            stable=change.before,
            baseline=change.baseline,
            fired=fired,
            searched_at=time_text(case.now_s),
        )
        return back.decided("Reverted", change.reason, f"all ranks run plan {change.before} again", plans=plans)
    return case.quiet("True", "Reverting", change.reason, wake_s=5.0)


def _return(
    case: Case, change: Change, reason: str, message: str, *, numbers: dict[str, float | None] | None = None
) -> Verdict:
    returning = case.begun(change, state="Reverting", reason=reason[:253])
    returning = returning.with_state(refused=refused(case, change.shape, reason))
    return returning.decided(
        "Reverting", reason, message, plans=(change.plan, change.before), numbers=numbers, wake_s=0.1
    )


def _trouble(case: Case, change: Change) -> Verdict | None:
    """A plan that a rank cannot run, or under which the job fails, is returned from at once."""
    if case.seen.failures >= MAX_FAILURES:
        return _return(case, change, "JobFails", f"{case.seen.failures} attempts failed since plan {change.plan} came")
    if case.seen.readings:
        for page in case.seen.readings[-1].pages:
            if page.refused is not None and page.refused[0] == change.plan:
                return _return(case, change, "Refused", f"rank {page.rank}: {page.refused[1]}")
    return None


def _all_report(case: Case, plan: str) -> bool:
    readings = case.seen.readings
    if not case.seen.is_running or not readings or not readings[-1].is_complete:
        return False
    newest = readings[-1]
    return newest.plan == plan and newest.attempt == case.seen.attempt


def _is_told(case: Case, change: Change) -> bool:
    """Whether the ranks say what they run, and it is something that was ever handed to them."""
    if not case.seen.readings:
        return False
    newest = case.seen.readings[-1]
    return (
        newest.is_complete
        and not newest.wrong
        and all(p.plan in (change.plan, change.before, "") for p in newest.pages)
    )


def _never_left(case: Case, change: Change) -> bool:
    """No rank has a plan: the new one was refused before any was in force."""
    return change.reason in ("Refused", "NotTaken") and _all_report(case, "")
