"""Conditions, phase and summary of a status: derived from the rest of it and from what was seen. Pure.

The catalogue of reasons is the code below: each condition has one function that gives all of its reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rap_contract.status import (
    Attempt,
    Condition,
    ConditionType,
    EndClass,
    Measured,
    Phase,
    PlanInForce,
    Status,
    time_s,
    time_text,
)

from rap_operator.attempts import is_live, is_terminal
from rap_operator.naming import pod_selector
from rap_operator.observed import Telemetry
from rap_operator.revise import Acceptance
from rap_operator.step import Sight
from rap_operator.views import PodView

# A checkpoint is fresh for three intervals: one being written, one missed.
FRESH_INTERVALS = 3
FRESH_SLACK_S = 60.0
# Pods come up one by one; that is written down in quarters, and not at all in the first half minute.
QUIET_START_S = 30.0
CALM = (ConditionType.SCHEDULED, ConditionType.RUNNING)
"""Conditions whose message stays while their reason does: the scheduler's words change by the second."""


@dataclass(frozen=True)
class Said:
    """What a condition says."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def set_condition(status: Status, kind: ConditionType, said: Said, *, generation: int, now_s: float) -> Status:
    """The status with one condition; its transition time changes only when its status does."""
    before = status.condition(kind)
    if before and kind in CALM and (before.status, before.reason) == (said.status, said.reason):
        said = Said(said.status, said.reason, before.message)
    if before and (before.status, before.reason, before.message, before.observed_generation) == (
        *(said.status, said.reason, said.message[:8192]),
        generation,
    ):
        return status
    since = before.last_transition_time if before and before.status == said.status else _whole_second(now_s)
    condition = Condition(
        type=kind,
        status=said.status,
        reason=said.reason,
        message=said.message[:8192],
        last_transition_time=since,
        observed_generation=generation,
    )
    if before:
        conditions = [condition if c.type == kind else c for c in status.conditions]
    else:
        conditions = [*status.conditions, condition]
    return status.model_copy(update={"conditions": conditions})


def without(status: Status, kind: ConditionType) -> Status:
    """The status without a condition."""
    if status.condition(kind) is None:
        return status
    return status.model_copy(update={"conditions": [c for c in status.conditions if c.type != kind]})


def summarised(status: Status, sight: Sight, acceptance: Acceptance) -> Status:
    """The status with everything derived brought up to date."""
    attempt = status.attempt
    pods = sight.observed.pods_of(attempt.number) if attempt else ()
    running = sum(1 for pod in pods if pod.is_ready and pod.deletion_s is None)
    status = _measured(status, sight)
    said = {
        ConditionType.ACCEPTED: Said(acceptance.status, acceptance.reason, acceptance.message),
        ConditionType.SCHEDULED: _scheduled(status, sight, pods),
        ConditionType.RUNNING: _running(status, sight, pods),
        ConditionType.CHECKPOINT_FRESH: _checkpoint_fresh(status, sight),
        ConditionType.STALLED: _stalled(status, sight),
        ConditionType.DEGRADED: _degraded(status, sight, acceptance),
        ConditionType.COMPLETE: _complete(status),
        ConditionType.FAILED: _failed(status),
    }
    for kind, what in said.items():
        status = set_condition(status, kind, what, generation=sight.generation, now_s=sight.now_s)
    if is_terminal(status) and status.completion_time is None:
        status = status.model_copy(update={"completion_time": time_text(sight.now_s)})
    update: dict[str, object] = {
        "observed_generation": sight.generation,
        "phase": phase_of(status, sight),
        "selector": pod_selector(sight.observed.subject.uid),
    }
    if not _is_detail(status, running, sight.now_s):
        wanted = attempt.nodes if attempt and is_live(status) else 0
        update |= {"ready": f"{running}/{wanted}", "nodes": len(pods)}
    return status.model_copy(update=update)


def _is_detail(status: Status, running: int, now_s: float) -> bool:
    """Whether the number of running pods is a step on the way up that nobody waits for."""
    attempt = status.attempt
    if attempt is None or not is_live(status) or attempt.running_at is not None or running in (0, attempt.nodes):
        return False
    before, _, wanted = status.ready.partition("/")
    if wanted != str(attempt.nodes) or now_s - time_s(attempt.recorded_at) < QUIET_START_S:
        return True
    return abs(running - (int(before) if before.isdigit() else 0)) * 4 < attempt.nodes


def phase_of(status: Status, sight: Sight) -> Phase:
    """The one word."""
    attempt = status.attempt
    if attempt is not None and is_terminal(status):
        return Phase.COMPLETED if attempt.end_class is EndClass.COMPLETED else Phase.FAILED
    if not is_live(status):
        has_left = bool(sight.observed.jobs or sight.observed.pods)
        if sight.policy.is_suspended:
            return Phase.SUSPENDING if has_left else Phase.SUSPENDED
        return Phase.RESTARTING if attempt else Phase.PENDING
    running = status.condition(ConditionType.RUNNING)
    return Phase.RUNNING if running and running.status == "True" else Phase.STARTING


def _scheduled(status: Status, sight: Sight, pods: tuple[PodView, ...]) -> Said:
    attempt = status.attempt
    if attempt is None or not is_live(status):
        return Said("False", _at_rest(status, sight))
    if len(pods) >= attempt.nodes and all(pod.is_scheduled for pod in pods):
        return Said("True", "AllPodsScheduled")
    job = sight.observed.job(attempt.number)
    if job is not None and job.is_suspended:
        return Said("False", "Queued", f"Job {job.meta.name} waits for its queue")
    waiting = sorted(pod.unscheduled for pod in pods if pod.unscheduled)
    if waiting:
        return Said("False", "Unschedulable", waiting[0])
    if job is not None and not pods:
        return Said("False", "NoPods", f"no pod exists yet; if that lasts, the events of Job {job.meta.name} say why")
    return Said("False", "Starting")


def _running(status: Status, sight: Sight, pods: tuple[PodView, ...]) -> Said:
    attempt = status.attempt
    if attempt is None or not is_live(status):
        return Said("False", _at_rest(status, sight))
    running = [pod for pod in pods if pod.phase == "Running" and pod.is_ready and pod.deletion_s is None]
    if len(running) >= attempt.nodes:
        return Said("True", "AllPodsRunning")
    stuck = sorted((pod.meta.name, *pod.waiting) for pod in pods if pod.waiting)
    if stuck:
        name, reason, message = stuck[0]
        return Said("False", reason, f"pod {name}: {message}")
    return Said("False", "Starting", f"attempt {attempt.number}: {attempt.cause}")


def _at_rest(status: Status, sight: Sight) -> str:
    if is_terminal(status):
        return "Finished"
    if sight.policy.is_suspended:
        return "Suspended"
    if status.attempt is None:
        return "NotStarted"
    if sight.observed.jobs or sight.observed.pods:
        return "WaitingForOldPods"
    return "WaitingToRestart"


def _telemetry(status: Status, sight: Sight) -> Telemetry | None:
    telemetry, attempt = sight.observed.telemetry, status.attempt
    if telemetry is None or attempt is None or not is_live(status) or telemetry.attempt != attempt.number:
        return None
    return telemetry


def _checkpoint_fresh(status: Status, sight: Sight) -> Said:
    telemetry = _telemetry(status, sight)
    if telemetry is None or telemetry.checkpoint_at_s is None:
        return Said("Unknown", _unknown(status, sight))
    limit_s = FRESH_INTERVALS * sight.policy.checkpoint_interval_s + FRESH_SLACK_S
    if telemetry.known_until_s(sight.now_s) - telemetry.checkpoint_at_s <= limit_s:
        return Said("True", "Fresh")
    return Said("False", "Old", f"no checkpoint for more than {limit_s:.0f} s")


def _stalled(status: Status, sight: Sight) -> Said:
    attempt = status.attempt
    if attempt is not None and not is_live(status) and attempt.end_reason == "Stalled":
        return Said("True", "Stalled", attempt.end_message)
    if _telemetry(status, sight) is None:
        return Said("Unknown", _unknown(status, sight))
    return Said("False", "Progressing")


def _unknown(status: Status, sight: Sight) -> str:
    if not is_live(status):
        return "NotRunning"
    return "NoMetrics" if sight.policy.has_metrics else "MetricsOff"


def _degraded(status: Status, sight: Sight, acceptance: Acceptance) -> Said:
    if status.revision.rejected:
        return Said("True", "RolledBack", f"revision {status.revision.rejected[:8]} never became healthy")
    if acceptance.status == "False" and status.revision.enforced:
        return Said("True", acceptance.reason, "an earlier spec is in force")
    if status.restarts.failures:
        allowed = sight.policy.restart.max_restarts
        return Said("True", "RecentFailures", f"{status.restarts.failures} failures, {allowed} restarts allowed")
    return Said("False", "Healthy")


def _complete(status: Status) -> Said:
    attempt = status.attempt
    if attempt is not None and is_terminal(status) and attempt.end_class is EndClass.COMPLETED:
        return Said("True", "Completed", attempt.end_message)
    return Said("False", "NotFinished" if not is_terminal(status) else "Failed")


def _failed(status: Status) -> Said:
    attempt = status.attempt
    if attempt is not None and is_terminal(status) and attempt.end_class is not EndClass.COMPLETED:
        return Said("True", attempt.end_reason or "Failed", attempt.end_message)
    return Said("False", "NotFinished" if not is_terminal(status) else "Completed")


def _measured(status: Status, sight: Sight) -> Status:
    telemetry = _telemetry(status, sight)
    if telemetry is None:
        return status
    update: dict[str, object] = {}
    if telemetry.plan_hash and telemetry.plan_hash != status.plan.hash:
        update["plan"] = PlanInForce(hash=telemetry.plan_hash, since=time_text(sight.now_s))
    if telemetry.may_report:
        update["metrics"] = Measured(
            samples_per_second=_rounded(telemetry.samples_per_second),
            exposed_percent=_rounded(telemetry.exposed_percent),
            freshness_seconds=_rounded(telemetry.freshness_s),
            lag_records=_rounded(telemetry.lag_records),
            step=telemetry.step,
            checkpoint_age_seconds=_rounded(_age(telemetry)),
            observed_at=time_text(telemetry.seen_at_s),
        )
    return status.model_copy(update=update)


def _age(telemetry: Telemetry) -> float | None:
    return None if telemetry.checkpoint_at_s is None else telemetry.seen_at_s - telemetry.checkpoint_at_s


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _whole_second(now_s: float) -> str:
    return time_text(float(int(now_s)))[:-8] + "Z"


__all__ = ["Attempt", "Said", "phase_of", "set_condition", "summarised", "time_s", "without"]
