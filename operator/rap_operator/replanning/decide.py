"""What to do about a job's plan: a pure function of spec, status, what was seen, and the time.

The status is the log, as for attempts. A plan is stored before it is named there, named there before it is handed to
the ranks, and judged before it counts as stable; whatever dies in between, the next pass goes on from what is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from rap_contract.operations import Replanning
from rap_contract.status import ReplanRecord, Replans, time_s, time_text

from rap_operator.replanning import idle, under_way
from rap_operator.replanning.case import Case
from rap_operator.replanning.gates import DAY_S
from rap_operator.replanning.triggers import SIZE
from rap_operator.replanning.values import EDITED, PutInForce, Seen, Verdict


def decide_replanning(
    policy: Replanning, state: Replans, seen: Seen, now_s: float, *, history: Sequence[ReplanRecord] = ()
) -> Verdict:
    """The verdict on one job now. `history`: which plans are worth keeping, and whether searches fail."""
    case = Case(policy=policy, state=_anchored(state, now_s), seen=seen, now_s=now_s, history=tuple(history))
    if policy.mode == "Off":
        dropped = case.with_state(change=None)
        return dropped.quiet("False", "Off", "spec.replanning.mode is Off")
    case = _resized(case)
    mended = _mended(case)
    if mended is not None:
        return mended
    return idle.advance(case) if case.state.change is None else under_way.advance(case)


def _anchored(state: Replans, now_s: float) -> Replans:
    """Times in the future count as now: a clock that was set back must hold nothing up for longer than it was to last."""
    if state.searched_at is not None and time_s(state.searched_at) > now_s:
        state = state.model_copy(update={"searched_at": time_text(now_s)})
    if state.over_since is not None and time_s(state.over_since) > now_s:
        state = state.model_copy(update={"over_since": time_text(now_s)})
    if state.restless_since is not None and time_s(state.restless_since) > now_s:
        state = state.model_copy(update={"restless_since": time_text(now_s)})
    change = state.change
    if change is not None and time_s(change.since) > now_s:
        state = state.model_copy(update={"change": change.model_copy(update={"since": time_text(now_s)})})
    ages_s = [now_s - time_s(moment) for moment in state.switches]
    recent = [
        m if age_s >= 0 else time_text(now_s) for m, age_s in zip(state.switches, ages_s, strict=True) if age_s < DAY_S
    ]
    refused = [refusal for refusal in state.refused if time_s(refusal.until) > now_s]
    if (recent, refused) == (state.switches, state.refused):
        return state
    return state.model_copy(update={"switches": recent, "refused": refused})


def _resized(case: Case) -> Case:
    """Another number of ranks needs another plan: what was known of the old one no longer counts."""
    known = case.state.num_ranks
    if known == case.seen.num_ranks:
        return case
    if known is None:
        return case.with_state(num_ranks=case.seen.num_ranks)
    return case.with_state(
        num_ranks=case.seen.num_ranks, change=None, stable="", baseline=None, fired=[SIZE], searched_at=None
    )


def _mended(case: Case) -> Verdict | None:
    """The ConfigMap holds what the status says, whatever somebody wrote there."""
    state, seen = case.state, case.seen
    change = state.change
    if change is None or change.state == "Proposed":
        wanted = state.stable
    elif change.state == "Reverting":
        wanted = change.before
    else:
        wanted = change.plan
    if not wanted or seen.in_force == wanted:
        return None
    is_our_own = change is not None and change.state in ("Applying", "Reverting") and seen.in_force != EDITED
    if is_our_own:  # not handed over yet
        return None
    if wanted in seen.stored:
        found = "was edited" if seen.in_force == EDITED else f"holds {seen.in_force or 'none'}"
        message = f"the ConfigMap {found}; plan {wanted} is put back"
        acts = (PutInForce(plan=wanted, why="mended"),)
        return case.decided("PlanMended", "ConfigMapEdited", message, plans=(wanted, wanted), acts=acts, wake_s=1.0)
    if not seen.in_force and not state.handed and change is None:
        return None  # the ranks' own plan: nothing was ever handed to them
    lost = case.with_state(change=None, stable="", baseline=None, fired=[], searched_at=None)
    message = f"plan {wanted} is no longer in the ConfigMap; the ranks keep what they have, and a plan is searched anew"
    return lost.decided("PlanLost", "ConfigMapEdited", message, plans=(wanted, ""), wake_s=1.0)
