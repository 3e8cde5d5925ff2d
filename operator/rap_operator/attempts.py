"""The life of attempts in the status: recorded, ended, counted, delayed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rap_contract.operations import RestartPolicy
from rap_contract.status import Attempt, EndClass, Restarts, Status, time_s, time_text

from rap_operator.failures import End

# An attempt that ends sooner without counting is followed by a delay all the same: a node that evicts
# everything at once would make the operator spin.
QUICK_S = 60.0
MAX_HISTORY = 10
MAX_REASONS = 64


def is_live(status: Status) -> bool:
    """Whether an attempt is recorded and not over."""
    return status.attempt is not None and status.attempt.state != "Ended"


def is_terminal(status: Status) -> bool:
    """Whether the job is over for good."""
    return status.attempt is not None and status.attempt.state == "Ended" and status.attempt.is_final


def record(status: Status, *, revision: str, nodes: int, cause: str, now_s: float) -> Status:
    """The status with the next attempt written down, before anything of it exists."""
    before = status.attempt
    number = before.number + 1 if before else 1
    # Times fence checkpoint writes, so they grow with the numbers whatever the clock does.
    recorded_s = max(now_s, time_s(before.recorded_at) + 0.001) if before else now_s
    attempt = Attempt(number=number, revision=revision, nodes=nodes, cause=cause, recorded_at=time_text(recorded_s))
    history = [before, *status.history][:MAX_HISTORY] if before else status.history
    restarts = status.restarts.model_copy(update={"total": number - 1})
    return status.model_copy(
        update={
            "attempt": attempt,
            "history": history,
            "restarts": restarts,
            "active_since": status.active_since or time_text(now_s),
        }
    )


def end(status: Status, ending: End, policy: RestartPolicy, *, now_s: float) -> Status:
    """The status with its live attempt over; a failure beyond the budget is final."""
    attempt = status.attempt
    assert attempt is not None
    failures = 0 if was_healthy(attempt, policy, now_s=now_s) else status.restarts.failures
    is_final, reason, message = ending.is_final, ending.reason, ending.message
    if ending.end_class is EndClass.FAILURE:
        failures += 1
        if failures > policy.max_restarts and not is_final:
            is_final = True
            message = f"failure {failures} with {policy.max_restarts} restarts allowed: {message}"
    ended = attempt.model_copy(
        update={
            "state": "Ended",
            "ended_at": time_text(now_s),
            "end_class": ending.end_class,
            "end_reason": reason[:253],
            "end_message": message[:4096],
            "exit_code": ending.exit_code,
            "is_final": is_final or ending.end_class is EndClass.COMPLETED,
        }
    )
    delay_s = _delay_s([ended, *status.history], failures, policy)
    ended = ended.model_copy(update={"not_before": time_text(now_s + delay_s)})
    restarts = status.restarts.model_copy(
        update={"failures": failures, "by_reason": _counted(status.restarts, reason[:253])}
    )
    return status.model_copy(update={"attempt": ended, "restarts": restarts})


def was_healthy(attempt: Attempt, policy: RestartPolicy, *, now_s: float) -> bool:
    """Whether the attempt has run long enough for failures before it to be forgotten."""
    return attempt.running_at is not None and now_s - time_s(attempt.running_at) >= policy.reset_after_seconds


def _delay_s(attempts: Sequence[Attempt], failures: int, policy: RestartPolicy) -> float:
    last = attempts[0]
    if last.end_class is EndClass.REQUEST or last.end_class is EndClass.COMPLETED:
        return 0.0
    steps = failures if last.end_class is EndClass.FAILURE else _quick_in_a_row(attempts)
    if steps == 0:
        return 0.0
    return float(min(policy.delay_seconds * 2.0 ** min(steps - 1, 32), max(policy.max_delay_seconds, 0)))


def _quick_in_a_row(attempts: Sequence[Attempt]) -> int:
    count = 0
    for attempt in attempts:
        if attempt.end_class not in (EndClass.DISRUPTION, EndClass.IGNORED) or not _was_quick(attempt):
            break
        count += 1
    return count


def _was_quick(attempt: Attempt) -> bool:
    if attempt.running_at is None or attempt.ended_at is None:
        return True
    return time_s(attempt.ended_at) - time_s(attempt.running_at) < QUICK_S


def _counted(restarts: Restarts, reason: str) -> dict[str, int]:
    counts = dict(restarts.by_reason)
    key = reason if reason in counts or len(counts) < MAX_REASONS - 1 else "Other"
    counts[key] = counts.get(key, 0) + 1
    return counts
