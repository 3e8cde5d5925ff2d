"""Which spec is in force: the first, a changed one, the last valid one, or the last stable one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rap_contract.job import RAPJobSpec
from rap_contract.status import ConditionType, Revision, Status, time_text

from rap_operator.attempts import is_live
from rap_operator.decision import KeepSupport
from rap_operator.notice import Notice
from rap_operator.spec_change import Change, classify
from rap_operator.step import Sight, Step

MAX_PROBLEMS = 5  # shown in a condition; `rap validate` shows all


@dataclass(frozen=True)
class Acceptance:
    """What the condition Accepted is to say."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""

    @classmethod
    def kept(cls, status: Status) -> Acceptance:
        """What it says already."""
        said = status.condition(ConditionType.ACCEPTED)
        return cls(said.status, said.reason, said.message) if said else cls("Unknown", "NotJudged")


def revise(step: Step, sight: Sight) -> tuple[Step, Acceptance]:
    """The step with the spec that is in force from now on, and what is said of the current one."""
    judged, revision = sight.judged, step.status.revision
    if judged.spec is None:
        return step, Acceptance("False", "InvalidSpec", _problems(judged.problems, revision))
    if not revision.enforced:
        return _enforced(step, sight), Acceptance("True", "Valid")
    if judged.revision == revision.enforced:
        if revision.rejected:  # the user has returned to it as well
            kept = revision.model_copy(update={"rejected": ""})
            step = step.with_status(step.status.model_copy(update={"revision": kept}))
        return step, Acceptance("True", "Valid")
    if judged.revision == revision.rejected:
        message = "this spec never became healthy; the last stable one is in force until the spec changes"
        return step, Acceptance("False", "RolledBack", message)
    old = sight.observed.stored.get(revision.enforced)
    if old is not None:
        change, why = classify(old, judged.spec, is_at_rest=_is_at_rest(step.status, sight))
        if change is Change.REFUSED:
            return step, Acceptance("False", "SpecChangeRefused", f"{why}; the spec before stays in force")
    return _enforced(step, sight), Acceptance("True", "Valid")


def enforced_spec(status: Status, sight: Sight) -> RAPJobSpec | None:
    """The spec in force; None if its ConfigMap is gone and the current document is another."""
    if sight.judged.revision == status.revision.enforced:
        return sight.judged.spec
    return sight.observed.stored.get(status.revision.enforced)


def keep_support(status: Status, *, nodes: int, why: str = "", is_spec_only: bool = False) -> KeepSupport:
    """The action that keeps the children of the revision in force."""
    revision = status.revision
    running = status.attempt.revision if status.attempt else ""
    kept = frozenset({revision.enforced, revision.stable, running} - {""})
    return KeepSupport(revision=revision.enforced, nodes=nodes, kept=kept, why=why, is_spec_only=is_spec_only)


def rolled_back(status: Status) -> Status:
    """The status with the last stable spec in force again."""
    revision = status.revision
    return status.model_copy(
        update={
            "revision": revision.model_copy(
                update={"enforced": revision.stable, "rejected": revision.enforced, "failures": 0}
            )
        }
    )


def is_unproven(revision: Revision) -> bool:
    """Whether a spec is in force that was never seen healthy, with one to return to."""
    return bool(revision.stable) and revision.enforced != revision.stable


def _enforced(step: Step, sight: Sight) -> Step:
    judged, before = sight.judged, step.status.revision
    assert judged.spec is not None
    revision = before.model_copy(
        update={
            "enforced": judged.revision,
            "generation": sight.generation,
            "since": time_text(sight.now_s),
            "rejected": "",
            "failures": 0,
        }
    )
    status = step.status.model_copy(update={"revision": revision})
    why = f"generation {sight.generation} is in force (revision {judged.revision[:8]})"
    if before.enforced:
        step = step.with_notice(Notice(reason="SpecChanged", message=why))
    # The spec is stored before the status relies on it.
    store = keep_support(status, nodes=judged.spec.trainer.nodes, why=why, is_spec_only=True)
    return step.with_status(status).with_action(store)


def _is_at_rest(status: Status, sight: Sight) -> bool:
    attempt = status.attempt
    if attempt is None or sight.policy.is_suspended:
        return True
    return not is_live(status) and status.active_since is None


def _problems(problems: tuple[str, ...], revision: Revision) -> str:
    shown = "; ".join(problem.replace("\n    hint: ", " - ") for problem in problems[:MAX_PROBLEMS])
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    kept = "; the last valid spec stays in force" if revision.enforced else ""
    return f"{shown}{more}{kept}"[:8192]
