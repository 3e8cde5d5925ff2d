"""While an attempt is live: its Job is made, its pods are watched, its end is seen and written down. Pure."""

from __future__ import annotations

from typing import Literal

from rap_contract.status import Attempt, EndClass, Status, time_s, time_text

from rap_operator import attempts
from rap_operator.between import cleared, deadline_message, is_past_deadline, wake_for_deadline
from rap_operator.decision import StartAttempt
from rap_operator.failures import PEER_LOST_WAIT_S, End, find_end, is_waiting_for_cause
from rap_operator.notice import Notice
from rap_operator.revise import enforced_spec, is_unproven, keep_support, rolled_back
from rap_operator.step import Sight, Step
from rap_operator.views import JobView, PodView


def advance(step: Step, sight: Sight) -> Step:
    """Takes the live attempt one step further, or ends it."""
    attempt = _attempt(step.status)
    job, pods = sight.observed.job(attempt.number), sight.observed.pods_of(attempt.number)
    ending = _end(step.status, sight, job, pods)
    if ending is not None:
        return _ended(step, sight, ending)
    step = wake_for_deadline(step, sight)
    if job is None:
        return _started(step, sight)
    if is_waiting_for_cause(job, pods, now_s=sight.now_s):
        step = step.waking(PEER_LOST_WAIT_S / 4)
    step = step.with_action(keep_support(step.status, nodes=attempt.nodes))
    return _followed(step, sight, pods)


def are_all_running(attempt: Attempt, pods: tuple[PodView, ...]) -> bool:
    """Whether the whole group runs."""
    running = [pod for pod in pods if pod.phase == "Running" and pod.is_ready and pod.deletion_s is None]
    return len(running) >= attempt.nodes > 0


def _started(step: Step, sight: Sight) -> Step:
    """The Job of a recorded attempt does not exist: it is made, unless something of another is left."""
    attempt = _attempt(step.status)
    others = [pod for pod in sight.observed.pods if pod.attempt != attempt.number]
    if others or sight.observed.jobs:
        return cleared(step, sight, keep=attempt.number)
    if enforced_spec(step.status, sight) is None:
        return step
    step = step.with_action(keep_support(step.status, nodes=attempt.nodes))
    return step.with_action(StartAttempt(number=attempt.number, revision=attempt.revision, why=attempt.cause))


def _followed(step: Step, sight: Sight, pods: tuple[PodView, ...]) -> Step:
    """The Job exists: what its pods have reached is written down."""
    attempt, status = _attempt(step.status), step.status
    if attempt.state == "Recorded":
        attempt = attempt.model_copy(update={"state": "Created"})
    if attempt.pods_at is None and pods:
        attempt = attempt.model_copy(update={"pods_at": time_text(sight.now_s)})
    if attempt.running_at is None and are_all_running(attempt, pods):
        attempt = attempt.model_copy(update={"running_at": time_text(sight.now_s)})
        nodes = f"{attempt.nodes} pod{'s' if attempt.nodes > 1 else ''}"
        step = step.with_notice(Notice(reason="Running", message=f"attempt {attempt.number}: {nodes} running"))
    status = status.model_copy(update={"attempt": attempt})
    if attempt.running_at is not None:
        step, status = _matured(step, sight, status, attempt)
    return step.with_status(status)


def _matured(step: Step, sight: Sight, status: Status, attempt: Attempt) -> tuple[Step, Status]:
    """A group that has run long enough proves its spec, and makes earlier failures forgotten."""
    assert attempt.running_at is not None
    healthy_s = sight.now_s - time_s(attempt.running_at)
    revision = status.revision
    if revision.stable != attempt.revision and revision.enforced == attempt.revision:
        telemetry = sight.observed.telemetry
        is_proven = telemetry is None or telemetry.attempt != attempt.number or telemetry.has_advanced
        left_s = sight.limits.stable_after_s - healthy_s
        if left_s > 0:
            step = step.waking(left_s)
        elif is_proven:
            revision = revision.model_copy(update={"stable": attempt.revision, "failures": 0})
            status = status.model_copy(update={"revision": revision})
    if status.restarts.failures:
        if attempts.was_healthy(attempt, sight.policy.restart, now_s=sight.now_s):
            restarts = status.restarts.model_copy(update={"failures": 0})
            status = status.model_copy(update={"restarts": restarts})
        else:
            step = step.waking(sight.policy.restart.reset_after_seconds - healthy_s)
    return step, status


def _end(status: Status, sight: Sight, job: JobView | None, pods: tuple[PodView, ...]) -> End | None:
    """Why the attempt is over, what happened by itself before what is asked for; None while it is not."""
    attempt, policy = _attempt(status), sight.policy
    if job is not None:
        happened = find_end(job, pods, now_s=sight.now_s)
        if job.parallelism != attempt.nodes and (happened is None or happened.end_class is not EndClass.COMPLETED):
            message = f"Job {job.meta.name} was made for {attempt.nodes} pods, and now wants {job.parallelism}"
            return End(end_class=EndClass.DISRUPTION, reason="JobEdited", message=message)
        if happened is not None:
            return happened.by_rules(policy.restart.rules)
        if job.is_suspended and (status.nodes > 0 or pods):
            message = f"Job {job.meta.name} was suspended, by its queue or by hand"
            return End(end_class=EndClass.DISRUPTION, reason="Preempted", message=message)
    elif attempt.state == "Created" or pods:
        return End(end_class=EndClass.DISRUPTION, reason="JobDeleted", message="its Job is gone")
    if is_past_deadline(status, sight):
        message = deadline_message(sight)
        return End(end_class=EndClass.FAILURE, reason="DeadlineExceeded", message=message, is_final=True)
    if policy.is_suspended:
        return End(end_class=EndClass.REQUEST, reason="Suspended", message="spec.suspend is true")
    if policy.restart_nonce is not None and policy.restart_nonce != status.restart_nonce:
        message = f"spec.restartNonce is {policy.restart_nonce}, was {status.restart_nonce}"
        return End(end_class=EndClass.REQUEST, reason="RestartRequested", message=message)
    if attempt.revision != status.revision.enforced:
        message = f"revision {status.revision.enforced[:8]} takes the place of {attempt.revision[:8]}"
        return End(end_class=EndClass.REQUEST, reason="SpecChanged", message=message)
    return _stalled(attempt, sight) or _never_healthy(status, sight, job)


def _stalled(attempt: Attempt, sight: Sight) -> End | None:
    telemetry, stall_s = sight.observed.telemetry, sight.policy.stall_s
    if stall_s <= 0 or telemetry is None or telemetry.attempt != attempt.number or attempt.running_at is None:
        return None
    known_s = telemetry.known_until_s(sight.now_s)
    running_s = sight.now_s - time_s(attempt.running_at)
    still_s = min(known_s - telemetry.progress_at_s, running_s)
    message = f"no step for {stall_s:.0f} s"
    if telemetry.checkpoint_at_s is not None and still_s < stall_s:
        due_s = stall_s + sight.policy.checkpoint_interval_s
        if min(known_s - telemetry.checkpoint_at_s, running_s) < due_s:
            return None
        still_s, message = stall_s, f"no checkpoint for {due_s:.0f} s"
    if still_s < stall_s:
        return None
    return End(end_class=EndClass.FAILURE, reason="Stalled", message=message).by_rules(sight.policy.restart.rules)


def _never_healthy(status: Status, sight: Sight, job: JobView | None) -> End | None:
    """Counts from the first pod, or from the start if none may exist; waiting in a queue is nobody's fault."""
    attempt = _attempt(status)
    if not is_unproven(status.revision) or job is None or (attempt.pods_at is None and job.is_suspended):
        return None
    if sight.now_s - time_s(attempt.pods_at or attempt.recorded_at) < sight.limits.rollback_after_s:
        return None
    message = f"revision {attempt.revision[:8]} was not healthy within {sight.limits.rollback_after_s:.0f} s"
    return End(end_class=EndClass.REQUEST, reason="NeverHealthy", message=message)


def _ended(step: Step, sight: Sight, ending: End) -> Step:
    """Writes the end down; a changed spec that fails gives way to the last stable one."""
    status, attempt = step.status, _attempt(step.status)
    revision = status.revision
    if is_unproven(revision) and attempt.revision == revision.enforced and ending.reason != "DeadlineExceeded":
        has_failed = ending.end_class is EndClass.FAILURE
        failures = revision.failures + (1 if has_failed else 0)
        is_hopeless = has_failed and (ending.is_final or failures >= sight.limits.rollback_failures)
        if is_hopeless or ending.reason == "NeverHealthy":
            status = rolled_back(status)
            ending = End(
                end_class=EndClass.REQUEST,
                reason=ending.reason,
                message=f"rolled back: {ending.message}",
                exit_code=ending.exit_code,
            )
            message = f"{ending.message}; revision {status.revision.enforced[:8]} is in force again"
            step = step.with_notice(Notice(reason="RolledBack", message=message, level="Warning"))
        else:
            revision = revision.model_copy(update={"failures": failures})
            status = status.model_copy(update={"revision": revision})
    status = attempts.end(status, ending, sight.policy.restart, now_s=sight.now_s)
    ended = _attempt(status)
    is_normal = ended.end_class in (EndClass.REQUEST, EndClass.COMPLETED)
    reason = "AttemptEnded" if not ended.is_final else "Complete" if is_normal else "Failed"
    message = f"attempt {ended.number}: {ended.end_reason}: {ended.end_message}"
    level: Literal["Normal", "Warning"] = "Normal" if is_normal else "Warning"
    return step.with_status(status).with_notice(Notice(reason=reason, message=message, level=level))


def _attempt(status: Status) -> Attempt:
    assert status.attempt is not None
    return status.attempt
