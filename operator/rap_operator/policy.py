"""The operator's own part of a spec, as the decision uses it; and the times no spec sets."""

from __future__ import annotations

from dataclasses import dataclass

from rap_contract.job import RAPJobSpec
from rap_contract.operations import RestartPolicy

from rap_operator.observed import Judged, Observed


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Times of the operator itself, set at its start."""

    force_after_s: float = 60.0
    """A pod that should have been gone so long ago is deleted without grace: its node does not answer."""
    stable_after_s: float = 60.0
    """A spec whose pods have all run so long, with a step made if metrics are read, is stable."""
    rollback_after_s: float = 600.0
    """A changed spec that is not stable after so long gives way to the last stable one."""
    rollback_failures: int = 2
    """So many failures of a spec never seen healthy bring the last stable one back."""
    resync_s: float = 600.0
    """Each job is looked at anew so often, without any request to the server."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How the job is to be kept running."""

    restart: RestartPolicy
    is_suspended: bool
    restart_nonce: int | None
    """None: no valid spec says."""
    stall_s: float
    deadline_s: float | None
    ttl_s: float | None
    checkpoint_interval_s: float
    has_metrics: bool


def policy_of(judged: Judged, observed: Observed) -> Policy:
    """From the current spec if it is valid, else from the last valid one; `suspend` always from the current."""
    spec = judged.spec or observed.stored.get(observed.status.revision.enforced)
    suspend = observed.subject.raw_spec.get("suspend", False)
    is_suspended = suspend if isinstance(suspend, bool) else False
    if spec is None:
        return Policy(
            restart=RestartPolicy(),
            is_suspended=is_suspended,
            restart_nonce=None,
            stall_s=RAPJobSpec.model_fields["stall_seconds"].default,
            deadline_s=None,
            ttl_s=None,
            checkpoint_interval_s=300.0,
            has_metrics=False,
        )
    return Policy(
        restart=spec.restart_policy,
        is_suspended=is_suspended,
        restart_nonce=spec.restart_nonce,
        stall_s=spec.stall_seconds,
        deadline_s=spec.active_deadline_seconds,
        ttl_s=spec.ttl_seconds_after_finished,
        checkpoint_interval_s=spec.checkpoint.interval_seconds,
        has_metrics=spec.trainer.metrics_port != 0,
    )
