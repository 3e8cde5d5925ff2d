"""Replanning as a part of a pass: fills in what the status knows, decides, and writes status, condition and notices. Pure."""

from __future__ import annotations

from dataclasses import replace

from rap_contract.operations import Replanning
from rap_contract.status import Condition, ConditionType, EndClass, Status, time_s

from rap_operator import attempts, conditions
from rap_operator.decision import Replan
from rap_operator.replanning.decide import decide_replanning
from rap_operator.replanning.record import noted
from rap_operator.replanning.values import Forget, Seen, Verdict
from rap_operator.step import Sight, Step

ANNOTATION = "rap.dev/replan"


def replanned(step: Step, sight: Sight) -> Step:
    """The step with what is to be done about the job's plan; unchanged where nobody reads metrics."""
    seen = sight.observed.replan
    spec = sight.judged.spec or sight.observed.stored.get(step.status.revision.enforced)
    if seen is None or spec is None:
        return step
    seen = _filled(seen, step.status, sight, num_ranks=spec.trainer.world_size)
    status = step.status
    verdict = decide_replanning(spec.replanning, status.replanning, seen, sight.now_s, history=status.replans)
    status = status.model_copy(
        update={
            "replanning": verdict.state,
            "replans": noted(status.replans, verdict.record, limit=spec.replanning.history),
        }
    )
    step = step.with_status(_conditioned(status, verdict, sight))
    counted = (verdict.record.outcome, verdict.record.reason) if verdict.record is not None else None
    acts = verdict.acts
    if spec.replanning.mode == "Off" and seen.proposal is not None:
        acts = (Forget(),)
    if acts or counted:
        step = step.with_action(Replan(acts=acts, counted=counted))
    for notice in verdict.notices:
        step = step.with_notice(notice)
    return step if verdict.wake_s is None else step.waking(verdict.wake_s)


def _filled(seen: Seen, status: Status, sight: Sight, *, num_ranks: int) -> Seen:
    attempt = status.attempt
    is_running = attempt is not None and attempts.is_live(status) and attempt.running_at is not None
    running_s = 0.0
    if attempt is not None and attempt.running_at is not None:
        running_s = max(sight.now_s - time_s(attempt.running_at), 0.0)
    return replace(
        seen,
        attempt=attempt.number if attempt is not None else 0,
        is_running=is_running,
        running_s=running_s,
        num_ranks=num_ranks,
        failures=_failures(status),
        annotation=sight.observed.subject.annotations.get(ANNOTATION, ""),
    )


def _failures(status: Status) -> int:
    """Attempts that ended as failures since the change under way began."""
    change = status.replanning.change
    if change is None:
        return 0
    since_s = time_s(change.since)
    ended = [attempt for attempt in (status.attempt, *status.history) if attempt is not None and attempt.ended_at]
    return sum(attempt.end_class is EndClass.FAILURE and time_s(attempt.ended_at or "") >= since_s for attempt in ended)


def _conditioned(status: Status, verdict: Verdict, sight: Sight) -> Status:
    """The condition Replanning. Its message stays while its reason does: the numbers change with every window."""
    kind, reason, message = verdict.condition
    before: Condition | None = status.condition(ConditionType.REPLANNING)
    if before is not None and (before.status, before.reason) == (kind, reason):
        message = before.message
    said = conditions.Said(kind, reason, message)
    return conditions.set_condition(
        status, ConditionType.REPLANNING, said, generation=sight.generation, now_s=sight.now_s
    )


def policy_problems(policy: Replanning) -> list[str]:
    """What is wrong with a policy beyond its bounds."""
    from rap_operator.replanning.blackout import problems

    return problems(policy.blackout)
