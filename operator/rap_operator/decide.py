"""What is to be done about a job: a pure function of its spec, of what was observed, and of the time.

The status is the log. A pass that changes what the job is about (an attempt begins, an attempt ends, a spec
comes into force) writes that down and does no more; the next pass acts on what is written. So a crash
anywhere leaves either the old truth or the new one, never an act without its reason.
"""

from __future__ import annotations

from rap_contract.status import ConditionType, Status, time_s, time_text

from rap_operator import attempts, between, conditions, during
from rap_operator.decision import Decision, RemoveAttempt, RemoveSelf
from rap_operator.notice import Notice
from rap_operator.observed import Judged, Observed
from rap_operator.policy import Limits, Policy, policy_of
from rap_operator.replanning.hook import replanned
from rap_operator.revise import Acceptance, revise
from rap_operator.step import Sight, Step


def decide(spec: Judged, observed: Observed, now_s: float, limits: Limits | None = None) -> Decision:
    """What to do about one job now. Says nothing twice: an unchanged world gives an unchanged status."""
    subject, status = observed.subject, observed.status
    if subject.is_deleting or subject.is_managed_elsewhere:
        return Decision(status=status)
    if subject.is_paused:
        return _paused(status, subject.generation, now_s)
    sight = Sight(
        judged=spec,
        observed=observed,
        policy=policy_of(spec, observed),
        limits=limits or Limits(),
        now_s=now_s,
    )
    step = Step(status=conditions.without(status, ConditionType.PAUSED))
    if attempts.is_terminal(status):
        return _concluded(_finished(step, sight), sight, Acceptance.kept(status))
    step = _adopted(step, sight)
    step, acceptance = revise(step, sight)
    step = during.advance(step, sight) if attempts.is_live(step.status) else between.advance(step, sight)
    return _concluded(replanned(step, sight), sight, acceptance)


def _paused(status: Status, generation: int, now_s: float) -> Decision:
    """Nothing is touched and nothing is decided; only that is said."""
    message = "nothing is done about this job while the annotation is there"
    paused = conditions.set_condition(
        status, ConditionType.PAUSED, conditions.Said("True", "Annotated", message), generation=generation, now_s=now_s
    )
    notices = () if status.condition(ConditionType.PAUSED) else (Notice(reason="Paused", message=message),)
    return Decision(status=paused, notices=notices)


def _adopted(step: Step, sight: Sight) -> Step:
    """A status that was lost (a restored backup) is rebuilt from the Jobs that are there."""
    if step.status.attempt is not None or not sight.observed.jobs:
        return step
    job = max(sight.observed.jobs, key=lambda job: job.attempt)
    status = attempts.record(
        step.status, revision=job.revision, nodes=job.parallelism, cause="Adopted", now_s=sight.now_s
    )
    assert status.attempt is not None
    adopted = status.attempt.model_copy(update={"number": max(job.attempt, 1), "state": "Created"})
    revision = status.revision.model_copy(
        update={"enforced": job.revision, "since": time_text(sight.now_s), "generation": sight.generation}
    )
    notice = Notice(reason="Adopted", message=f"the status was lost; attempt {job.attempt} goes on", level="Warning")
    return step.with_status(status.model_copy(update={"attempt": adopted, "revision": revision})).with_notice(notice)


def _finished(step: Step, sight: Sight) -> Step:
    """The job is over: what still runs goes, the last Job stays for its logs, the TTL counts."""
    attempt = step.status.attempt
    assert attempt is not None
    # A Job whose pod failed ends by itself: it and its pods stay for their logs.
    ends_itself = attempt.exit_code is not None
    for job in sight.observed.jobs:
        has_ended = ends_itself or job.is_finished or job.failed or job.complete is not None
        is_kept = job.attempt == attempt.number and has_ended
        if not is_kept and not job.meta.is_deleting:
            step = step.with_action(RemoveAttempt(name=job.meta.name, uid=job.meta.uid, why="the job is over"))
    step = between.force_stuck(step, sight)
    completed_s = time_s(step.status.completion_time or attempt.ended_at or time_text(sight.now_s))
    if sight.policy.ttl_s is not None:
        left_s = completed_s + sight.policy.ttl_s - sight.now_s
        if left_s <= 0:
            return step.with_action(RemoveSelf(why=f"finished {sight.policy.ttl_s:.0f} s ago"))
        step = step.waking(left_s)
    return step


def _concluded(step: Step, sight: Sight, acceptance: Acceptance) -> Decision:
    status = conditions.summarised(step.status, sight, acceptance)
    wakes = [*step.wakes_s, sight.limits.resync_s]
    return Decision(
        status=status,
        actions=step.actions,
        notices=step.notices,
        requeue_s=max(min(wakes), 0.05),
    )


__all__ = ["Limits", "Policy", "decide"]
