"""What a changed spec asks for: nothing, an immediate change of policy, a restart, or a refusal.

The trainer reads one part of the spec, the operator the other. The first part is a revision, named by its
hash: pods run one revision from start to end. The second takes effect at the next pass, pods untouched.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any

from rap_contract.job import RAPJobSpec

OPERATORS_OWN = (
    "suspend",
    "restart_policy",
    "replanning",
    "active_deadline_seconds",
    "stall_seconds",
    "ttl_seconds_after_finished",
    "managed_by",
    "restart_nonce",
)
"""Fields of the spec that only the operator reads."""


class Change(StrEnum):
    """Class of a change of the spec."""

    IGNORED = "Ignored"
    """Nothing differs once defaults are filled in."""
    HOT = "Hot"
    """Only the operator's own fields differ: in force at once, pods untouched."""
    RESTART = "Restart"
    """The trainer's part differs: a new attempt, through a checkpoint."""
    REFUSED = "Refused"
    """The state of the running job could not survive it."""


def revision_of(spec: RAPJobSpec) -> str:
    """Hash of the part of a spec that the trainer reads."""
    document = spec.model_dump(mode="json", by_alias=True, exclude=set(OPERATORS_OWN), exclude_none=True)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def classify(old: RAPJobSpec, new: RAPJobSpec, *, is_at_rest: bool) -> tuple[Change, str]:
    """The class of the change from `old` to `new`, and for a refusal its reason.

    `is_at_rest`: no pods run and none are about to (the job is suspended, or suspends with this change).
    """
    if (old.source.kafka is None) != (new.source.kafka is None):
        return Change.REFUSED, "spec.source: the kind of source never changes; create another job"
    if old.managed_by != new.managed_by:
        return Change.REFUSED, "spec.managedBy never changes"
    if not is_at_rest:
        for place, before, after in _state_of(old, new):
            if before != after:
                return Change.REFUSED, f"{place} changes only while the job is suspended"
    if revision_of(old) != revision_of(new):
        return Change.RESTART, ""
    return (Change.IGNORED if old == new else Change.HOT), ""


def _state_of(old: RAPJobSpec, new: RAPJobSpec) -> tuple[tuple[str, Any, Any], ...]:
    return (
        ("spec.model", old.model, new.model),
        ("spec.label", old.label, new.label),
        ("spec.checkpoint.path", old.checkpoint.path, new.checkpoint.path),
    )
