"""The children of a RAPJob as objects: Service, ConfigMaps, PodDisruptionBudget, and an attempt's Job. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rap_contract.job import API_VERSION, KIND, RAPJobSpec
from rap_contract.status import Attempt

from rap_operator import naming
from rap_operator.observed import Subject
from rap_operator.pod_template import pod_template
from rap_operator.replanning.plan_config import in_force, stored
from rap_operator.resources import BUDGETS, CONFIG_MAPS, JOBS, SERVICES, Resource
from rap_operator.views import Object, SupportView, meta_of

JOB_KEY = "job.yaml"
PLAN_KEY = "plan.json"

Support = tuple[Resource, Object]


def service(subject: Subject) -> Support:
    """The headless Service that gives the pods their host names, before they are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {naming.LABEL_MANAGED_BY: naming.MANAGER, naming.LABEL_JOB_UID: subject.uid},
    }
    return SERVICES, _object(SERVICES, subject, subject.base, spec=spec)


def budget(subject: Subject, nodes: int) -> Support:
    """Lets evictions come one at a time: each restarts the whole group, so a drain of two nodes costs one restart."""
    spec = {
        "minAvailable": nodes - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {naming.LABEL_MANAGED_BY: naming.MANAGER, naming.LABEL_JOB_UID: subject.uid}},
    }
    return BUDGETS, _object(BUDGETS, subject, subject.base, spec=spec)


def spec_config(subject: Subject, revision: str, spec: RAPJobSpec) -> Support:
    """The job as its pods read it. JSON, which is YAML."""
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": subject.name, "namespace": subject.namespace},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    body = _object(CONFIG_MAPS, subject, naming.spec_name(subject.base, revision))
    body["metadata"]["labels"][naming.LABEL_REVISION] = revision
    body["data"] = {JOB_KEY: json.dumps(document)}
    return CONFIG_MAPS, body


def plan_config(subject: Subject) -> Support:
    """Where the plan in force is written; empty until there is one, and then the replanner's."""
    return CONFIG_MAPS, _object(CONFIG_MAPS, subject, naming.plan_name(subject.base))


def attempt_job(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> Object:
    """The Indexed Job of an attempt: a pod a node, all or nothing, no restart of its own."""
    body = _object(JOBS, subject, naming.attempt_name(subject.base, attempt.number))
    body["metadata"]["labels"] |= {**subject.scheduler_labels, **_attempt_labels(attempt)}
    plan_hash = subject.status.plan.hash
    if plan_hash:
        body["metadata"]["annotations"][naming.ANNOTATION_PLAN_HASH] = plan_hash
    template = pod_template(subject, attempt, spec)
    template["metadata"]["labels"] |= {**naming.job_labels(subject.name, subject.uid), **_attempt_labels(attempt)}
    gang = {naming.ANNOTATION_VOLCANO_GANG: str(attempt.nodes)}
    is_volcanos = template["spec"].get("schedulerName") == naming.VOLCANO
    body["metadata"]["annotations"] |= {**(gang if is_volcanos else {}), **subject.scheduler_annotations}
    trainer = template["spec"]["containers"][0]["name"]
    body["spec"] = {
        "completionMode": "Indexed",
        "completions": attempt.nodes,
        "parallelism": attempt.nodes,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": trainer, "operator": "NotIn", "values": [0]},
                },
            ]
        },
        "suspend": subject.is_queued,
        "template": template,
    }
    return body


def support_view(item: Mapping[str, Any], kind: str) -> SupportView:
    """What is kept of a Service, ConfigMap or PDB."""
    revision = (item["metadata"].get("labels") or {}).get(naming.LABEL_REVISION, "")
    meta, content = meta_of(item), content_of(item, kind)
    if content_is_a_plan(meta.name, kind):
        plan, plans = in_force(item), stored(item)
        return SupportView(meta=meta, content=content, revision=revision, plan=plan, plans=plans)
    return SupportView(meta=meta, content=content, revision=revision)


def content_is_a_plan(name: str, kind: str) -> bool:
    """Whether it is the ConfigMap of a plan."""
    return kind == CONFIG_MAPS.kind and name.endswith("-plan")


def content_of(item: Mapping[str, Any], kind: str) -> str:
    """Digest of the fields of a supporting object that are ours; a plan's content is not."""
    spec = item.get("spec") or {}
    content: Any
    if kind == SERVICES.kind:
        content = [spec.get("clusterIP"), spec.get("publishNotReadyAddresses"), spec.get("selector")]
    elif kind == BUDGETS.kind:
        content = [spec.get("minAvailable"), spec.get("unhealthyPodEvictionPolicy"), spec.get("selector")]
    elif item["metadata"]["name"].endswith("-plan"):
        content = "plan"
    else:
        content = item.get("data")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def owner_reference(subject: Subject) -> Object:
    """What makes a child go with its RAPJob."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": subject.name,
        "uid": subject.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _attempt_labels(attempt: Attempt) -> dict[str, str]:
    return {naming.LABEL_ATTEMPT: str(attempt.number), naming.LABEL_REVISION: attempt.revision}


def _object(resource: Resource, subject: Subject, name: str, **parts: Any) -> Object:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": subject.namespace,
            "labels": naming.job_labels(subject.name, subject.uid),
            "annotations": {
                naming.ANNOTATION_JOB: subject.name,
                naming.ANNOTATION_GENERATION: str(subject.generation),
            },
            "ownerReferences": [owner_reference(subject)],
        },
        **parts,
    }
