"""What the operator keeps of the objects it watches: small frozen values instead of whole documents.

A pod is some 15 kB as parsed JSON and under 1 kB here. Reading only; nothing is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rap_contract.pod import CONTAINER
from rap_contract.status import time_s

from rap_operator.naming import LABEL_ATTEMPT, LABEL_JOB_UID, LABEL_REVISION

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meta:
    """Identity of an object."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    job_uid: str = ""
    """UID of the RAPJob it belongs to, from its label."""
    owner_uid: str = ""
    """UID of its controller."""
    is_deleting: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A batch Job: one attempt."""

    meta: Meta
    attempt: int
    revision: str = ""
    is_suspended: bool = False
    parallelism: int = 0
    complete: str | None = None
    """Message of the condition Complete or SuccessCriteriaMet."""
    failed: tuple[str, str] | None = None
    """Reason and message of the condition Failed or FailureTarget."""
    is_finished: bool = False
    """It has Complete or Failed: the Job controller is done with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodView:
    """A pod of an attempt."""

    meta: Meta
    attempt: int
    index: int = 0
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    ip: str = ""
    is_scheduled: bool = False
    unscheduled: str = ""
    is_ready: bool = False
    deletion_s: float | None = None
    """When its grace period ends, if it is being deleted."""
    deletion_asked_s: float | None = None
    disruption: tuple[str, str, float] | None = None
    """Reason, message and time of the condition DisruptionTarget."""
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    finished_s: float | None = None
    waiting: tuple[str, str] | None = None
    """Reason and message of a container that cannot start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SupportView:
    """A Service, ConfigMap or PodDisruptionBudget."""

    meta: Meta
    content: str
    """Digest of the fields we set."""
    revision: str = ""
    """Of a spec's ConfigMap."""
    plan: str = ""
    """Of a plan's ConfigMap: hash of the plan in force, see `replanning.plan_config.in_force`."""
    plans: frozenset[str] = frozenset()
    """Of a plan's ConfigMap: hashes of the plans it keeps."""


def meta_of(item: Mapping[str, Any]) -> Meta:
    """Identity of any object."""
    metadata = item["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return Meta(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        job_uid=(metadata.get("labels") or {}).get(LABEL_JOB_UID, ""),
        owner_uid=next((owner["uid"] for owner in owners if owner.get("controller")), ""),
        is_deleting="deletionTimestamp" in metadata,
    )


def job_view(item: Mapping[str, Any]) -> JobView:
    """What is kept of a batch Job."""
    status, spec = item.get("status") or {}, item.get("spec") or {}
    true = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
    complete = true.get("Complete") or true.get("SuccessCriteriaMet")
    failed = true.get("Failed") or true.get("FailureTarget")
    labels = item["metadata"].get("labels") or {}
    return JobView(
        meta=meta_of(item),
        attempt=_number(labels.get(LABEL_ATTEMPT)),
        revision=labels.get(LABEL_REVISION, ""),
        is_suspended=bool(spec.get("suspend")),
        parallelism=spec.get("parallelism") or 0,
        complete=complete.get("message", "") if complete else None,
        failed=(failed.get("reason", ""), failed.get("message", "")) if failed else None,
        is_finished="Complete" in true or "Failed" in true,
    )


def pod_view(item: Mapping[str, Any]) -> PodView:
    """What is kept of a pod."""
    metadata, status = item["metadata"], item.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled, disruption = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    labels = metadata.get("labels") or {}
    deletion_s = _seconds(metadata.get("deletionTimestamp"))
    grace_s = metadata.get("deletionGracePeriodSeconds") or 0
    return PodView(
        meta=meta_of(item),
        attempt=_number(labels.get(LABEL_ATTEMPT)),
        index=_number(labels.get("batch.kubernetes.io/job-completion-index")),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", "")[:1024],
        node=(item.get("spec") or {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        is_scheduled=scheduled.get("status") == "True" or bool((item.get("spec") or {}).get("nodeName")),
        unscheduled=scheduled.get("message", "")[:1024] if scheduled.get("status") == "False" else "",
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        deletion_s=deletion_s,
        deletion_asked_s=None if deletion_s is None else deletion_s - grace_s,
        disruption=_disruption(disruption),
        **_containers(status),
    )


def _disruption(condition: Mapping[str, Any]) -> tuple[str, str, float] | None:
    if condition.get("status") != "True":
        return None
    when = _seconds(condition.get("lastTransitionTime"))
    return condition.get("reason", ""), condition.get("message", "")[:1024], when or 0.0


def _containers(status: Mapping[str, Any]) -> dict[str, Any]:
    """The end of the trainer's container, or of another that failed; what keeps one from starting."""
    found: dict[str, Any] = {}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in sorted(statuses, key=lambda c: c.get("name") == CONTAINER):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended and (ended.get("exitCode") or container.get("name") == CONTAINER):
            found |= {
                "exit_code": ended.get("exitCode", 0),
                "exit_reason": ended.get("reason", ""),
                "exit_message": (ended.get("message") or "")[:4096],
                "finished_s": _seconds(ended.get("finishedAt")),
            }
        if waiting and waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            found["waiting"] = (waiting["reason"], (waiting.get("message") or "")[:1024])
    return found


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _seconds(text: str | None) -> float | None:
    return time_s(text) if text else None
