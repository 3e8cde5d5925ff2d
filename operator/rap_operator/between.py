"""Between two attempts: the old one goes entirely, the delay passes, the next one is written down. Pure."""

from __future__ import annotations

from rap_contract.status import Attempt, Status, time_s

from rap_operator import attempts
from rap_operator.decision import RemoveAttempt, RemovePod
from rap_operator.notice import Notice
from rap_operator.revise import enforced_spec
from rap_operator.step import Sight, Step

CLOCK_SLACK_S = 5.0  # two machines' clocks may differ so much


def advance(step: Step, sight: Sight) -> Step:
    """Takes the job from the end of an attempt, or from none, towards the next."""
    step = cleared(step, sight, keep=None)
    attempt, policy = step.status.attempt, sight.policy
    if attempt is not None and is_past_deadline(step.status, sight):
        return step.with_status(_failed_by_deadline(step.status, sight)).with_notice(
            Notice(reason="DeadlineExceeded", message=deadline_message(sight), level="Warning")
        )
    step = wake_for_deadline(step, sight)
    if sight.observed.jobs or sight.observed.pods:
        return step
    if policy.is_suspended:
        return step.with_status(step.status.model_copy(update={"active_since": None}))
    spec = enforced_spec(step.status, sight)
    if spec is None:
        return step
    left_s = _delay_left_s(attempt, sight.now_s) if attempt else 0.0
    if left_s > 0:
        return step.waking(left_s)
    nodes = spec.trainer.nodes
    cause = attempt.end_reason if attempt else "Created"
    cause = "Resumed" if cause == "Suspended" else cause
    status = attempts.record(
        step.status, revision=step.status.revision.enforced, nodes=nodes, cause=cause, now_s=sight.now_s
    )
    status = status.model_copy(update={"restart_nonce": policy.restart_nonce or 0, "nodes": 0})
    assert status.attempt is not None
    message = f"attempt {status.attempt.number} of {nodes} pod{'s' if nodes > 1 else ''}: {cause}"
    return step.with_status(status).with_notice(Notice(reason="AttemptRecorded", message=message))


def _delay_left_s(attempt: Attempt, now_s: float) -> float:
    """What is left of the delay; nothing if the clock was set back since, or it could last for days."""
    if attempt.not_before is None or attempt.ended_at is None or now_s < time_s(attempt.ended_at) - CLOCK_SLACK_S:
        return 0.0
    return time_s(attempt.not_before) - now_s


def cleared(step: Step, sight: Sight, *, keep: int | None) -> Step:
    """Removes the Jobs of all attempts but `keep`, pods that lost their Job, and pods that will not end."""
    owners = {job.meta.uid for job in sight.observed.jobs}
    for job in sight.observed.jobs:
        if job.attempt != keep and not job.meta.is_deleting:
            why = f"attempt {job.attempt} is over"
            step = step.with_action(RemoveAttempt(name=job.meta.name, uid=job.meta.uid, why=why))
    for pod in sight.observed.pods:
        if pod.attempt != keep and pod.deletion_s is None and pod.meta.owner_uid not in owners:
            action = RemovePod(name=pod.meta.name, uid=pod.meta.uid, is_forced=False, why="its Job is gone")
            step = step.with_action(action)
    return force_stuck(step, sight, keep=keep)


def force_stuck(step: Step, sight: Sight, *, keep: int | None = None) -> Step:
    """Deletes without grace the pods whose grace ended too long ago."""
    for pod in sight.observed.pods:
        if pod.deletion_s is None or pod.attempt == keep:
            continue
        left_s = pod.deletion_s + sight.limits.force_after_s - sight.now_s
        if left_s > 0:
            step = step.waking(left_s)
            continue
        why = f"pod {pod.meta.name} should have been gone {sight.limits.force_after_s:.0f} s ago; node {pod.node}"
        step = step.with_action(RemovePod(name=pod.meta.name, uid=pod.meta.uid, is_forced=True, why=why))
        step = step.with_notice(Notice(reason="PodForced", message=why, level="Warning")).waking(10.0)
    return step


def is_past_deadline(status: Status, sight: Sight) -> bool:
    """Whether the job has run as long as it may."""
    deadline_s = sight.policy.deadline_s
    if deadline_s is None or status.active_since is None:
        return False
    return sight.now_s - time_s(status.active_since) >= deadline_s


def wake_for_deadline(step: Step, sight: Sight) -> Step:
    """Looks again when the deadline comes."""
    if sight.policy.deadline_s is None or step.status.active_since is None:
        return step
    return step.waking(time_s(step.status.active_since) + sight.policy.deadline_s - sight.now_s)


def deadline_message(sight: Sight) -> str:
    """What is said of a job past its deadline."""
    return f"the job has run for its activeDeadlineSeconds, {sight.policy.deadline_s:.0f}"


def _failed_by_deadline(status: Status, sight: Sight) -> Status:
    attempt = status.attempt
    assert attempt is not None
    ended = attempt.model_copy(
        update={"is_final": True, "end_reason": "DeadlineExceeded", "end_message": deadline_message(sight)}
    )
    return status.model_copy(update={"attempt": ended})
