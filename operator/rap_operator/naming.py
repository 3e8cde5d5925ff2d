"""Names, labels and annotations of everything the operator makes. Deterministic: a second create is a 409."""

from __future__ import annotations

import re

MANAGER = "rap-operator"
"""Value of app.kubernetes.io/managed-by on our children."""
OWN_NAMES = (None, MANAGER, f"rap.dev/{MANAGER}")
"""Values of spec.managedBy that mean this operator."""

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_JOB = "rap.dev/job"
LABEL_JOB_UID = "rap.dev/job-uid"
LABEL_ATTEMPT = "rap.dev/attempt"
LABEL_REVISION = "rap.dev/revision"
ANNOTATION_JOB = "rap.dev/job"
ANNOTATION_GENERATION = "rap.dev/generation"
ANNOTATION_PLAN_HASH = "rap.dev/plan-hash"
ANNOTATION_PAUSE = "rap.dev/pause-reconciliation"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""A RAPJob with this label has Jobs that start suspended: Kueue admits them."""
SCHEDULER_DOMAINS = (
    "kueue.x-k8s.io/",
    "scheduling.k8s.io/",
    "scheduling.x-k8s.io/",
    "scheduling.volcano.sh/",
    "volcano.sh/",
    "yunikorn.apache.org/",
)
"""Labels and annotations of a RAPJob under these go to its Jobs: what queues and gang schedulers read there."""
VOLCANO = "volcano"
ANNOTATION_VOLCANO_GANG = "scheduling.volcano.sh/group-min-member"
"""On a Job: Volcano places so many of its pods at once or none (its pod group controller reads it)."""

SELECTOR = f"{LABEL_MANAGED_BY}={MANAGER}"
"""Of everything ours; what the operator watches."""

# Pods are named <job>-<index>-<random>, hosts <job>-<index>, both at most 63 characters: 1,024 nodes need 5,
# the attempt 6, "-spec-" and a hash 14; what is left goes to the name.
_MAX_SLUG = 30


def slug(name: str) -> str:
    """A RAPJob's name as the start of a DNS label."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_MAX_SLUG].strip("-")
    return text if text[:1].isalpha() else f"j{text}"


def base(name: str, uid: str) -> str:
    """What the names of all children of a RAPJob begin with; also the name of its Service and PDB."""
    return f"{slug(name)}-{uid.replace('-', '')[:8]}"


def attempt_name(base_name: str, number: int) -> str:
    """Name of an attempt's Job."""
    return f"{base_name}-{number}"


def spec_name(base_name: str, revision: str) -> str:
    """Name of the ConfigMap that holds a spec."""
    return f"{base_name}-spec-{revision[:8]}"


def plan_name(base_name: str) -> str:
    """Name of the ConfigMap that holds the plan."""
    return f"{base_name}-plan"


def host(base_name: str, number: int, index: int) -> str:
    """Host name of a pod of an attempt, as its peers in the namespace resolve it."""
    return f"{attempt_name(base_name, number)}-{index}.{base_name}"


def job_labels(name: str, uid: str) -> dict[str, str]:
    """Labels of every child of a RAPJob."""
    return {
        LABEL_NAME: "rap",
        LABEL_MANAGED_BY: MANAGER,
        LABEL_JOB: name if len(name) <= 63 else slug(name),
        LABEL_JOB_UID: uid,
    }


def pod_selector(uid: str) -> str:
    """Selector of the pods of a RAPJob, of any attempt."""
    return f"{SELECTOR},{LABEL_JOB_UID}={uid}"
