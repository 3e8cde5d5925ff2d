"""The pods of an attempt: `rap run` on each node, meeting at index 0; the user's podTemplate laid over it. Pure."""

from __future__ import annotations

from typing import Any

from rap_contract import pod
from rap_contract.job import RAPJobSpec
from rap_contract.status import Attempt, time_s, time_text

from rap_operator import naming
from rap_operator.observed import Subject
from rap_operator.overlay import conflicts, merged
from rap_operator.views import Object

# For the checkpoint after SIGTERM, and the first part of the wait for a lost node. A job whose checkpoint takes longer
# sets its own in podTemplate.
GRACE_S = 120
# Kubernetes waits 300 s before it evicts from a lost node; a whole group stands still meanwhile.
LOST_NODE_S = 30
GPU = "nvidia.com/gpu"
PLACE = "spec.trainer.podTemplate"
INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def pod_template(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> Object:
    """The template of an attempt's pods, the trainer's container first."""
    template = _own(subject, attempt, spec)
    overlaid: Object = merged(template, spec.trainer.pod_template)
    containers = overlaid["spec"]["containers"]
    overlaid["spec"]["containers"] = sorted(containers, key=lambda container: container.get("name") != pod.CONTAINER)
    metadata = overlaid["metadata"]
    metadata["labels"] = dict(metadata.get("labels") or {})
    return overlaid


def problems(spec: RAPJobSpec) -> tuple[str, ...]:
    """What about a spec's podTemplate cannot be merged; what the merged template says is the API server's to judge."""
    theirs = spec.trainer.pod_template
    if not theirs:
        return ()
    subject = Subject(namespace="", name="name", uid="uid")
    attempt = Attempt(number=1, nodes=spec.trainer.nodes, recorded_at=time_text(0.0))
    ours = _own(subject, attempt, spec)
    found = conflicts(ours, theirs, place=PLACE)
    if found:
        return found
    result = merged(ours, theirs)
    missing = [
        f"{PLACE}.{part}: it cannot be removed"
        for part in ("metadata", "spec")
        if not isinstance(result.get(part), dict)
    ]
    if missing:
        return tuple(missing)
    containers = result["spec"].get("containers")
    if not isinstance(containers, list) or not all(isinstance(item, dict) and item.get("name") for item in containers):
        return (f"{PLACE}.spec.containers: each has a name, and one is due",)
    return () if containers else (f"{PLACE}.spec.containers: one is due",)


def rendezvous(subject: Subject, attempt: Attempt) -> str:
    """Where the ranks meet: at pod 0, by the name its Service gives it."""
    return f"{naming.host(subject.base, attempt.number, 0)}:{pod.PORT_RENDEZVOUS}"


def _own(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> Object:
    annotations = {naming.ANNOTATION_JOB: subject.name, naming.ANNOTATION_GENERATION: str(subject.generation)}
    return {
        "metadata": {"labels": {}, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "subdomain": subject.base,
            "terminationGracePeriodSeconds": GRACE_S,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{trouble}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": LOST_NODE_S,
                }
                for trouble in ("not-ready", "unreachable")
            ],
            "topologySpreadConstraints": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "maxSkew": 1,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {naming.LABEL_JOB_UID: subject.uid}},
                }
            ],
            "containers": [_container(subject, attempt, spec)],
            "volumes": _volumes(subject, attempt, spec),
        },
    }


def _container(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> Object:
    trainer = spec.trainer
    ports: list[Object] = [{"name": "rendezvous", "containerPort": pod.PORT_RENDEZVOUS}]
    if trainer.metrics_port:  # one a rank
        names = ("metrics", *(f"metrics-{rank}" for rank in range(1, trainer.ranks_per_node)))
        ports += [{"name": name, "containerPort": trainer.metrics_port + rank} for rank, name in enumerate(names)]
    mounts: list[Object] = [
        {"name": "rap-job", "mountPath": pod.JOB_MOUNT, "readOnly": True},
        {"name": "rap-plan", "mountPath": pod.PLAN_MOUNT, "readOnly": True},
        {"name": "rap-shm", "mountPath": pod.SHM_MOUNT},
    ]
    if _secret(spec):
        mounts.append({"name": "rap-secrets", "mountPath": pod.SECRET_MOUNT, "readOnly": True})
    if trainer.metrics_secret_name:
        mounts.append({"name": "rap-metrics", "mountPath": pod.METRICS_SECRET_MOUNT, "readOnly": True})
    container: Object = {
        "name": pod.CONTAINER,
        "image": trainer.image,
        # Not torchrun: it hides its ranks' exit codes and kills them 30 s after SIGTERM (torch 2.11).
        "command": ["rap", "run", pod.JOB_FILE],
        "env": _environment(subject, attempt),
        "ports": ports,
        "volumeMounts": mounts,
        "terminationMessagePath": pod.TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if trainer.gpus_per_node:
        container["resources"] = {"limits": {GPU: trainer.gpus_per_node}}
    return container


def _environment(subject: Subject, attempt: Attempt) -> list[Object]:
    values = {
        pod.ENV_ATTEMPT: str(attempt.number),
        pod.ENV_FENCE: str(round(time_s(attempt.recorded_at) * 1000)),
        pod.ENV_JOB_FILE: pod.JOB_FILE,
        pod.ENV_PLAN_FILE: pod.PLAN_FILE,
        pod.ENV_JOB_NAME: subject.name,
        pod.ENV_JOB_UID: subject.uid,
        pod.ENV_NAMESPACE: subject.namespace,
        pod.ENV_NODES: str(attempt.nodes),
        pod.ENV_RENDEZVOUS: rendezvous(subject, attempt),
        "PYTHONUNBUFFERED": "1",
    }
    index: Object = {"name": pod.ENV_NODE_INDEX, "valueFrom": {"fieldRef": {"fieldPath": INDEX_FIELD}}}
    return [*({"name": name, "value": value} for name, value in values.items()), index]


def _volumes(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> list[Object]:
    volumes: list[Object] = [
        {"name": "rap-job", "configMap": {"name": naming.spec_name(subject.base, attempt.revision)}},
        {"name": "rap-plan", "configMap": {"name": naming.plan_name(subject.base), "optional": True}},
        {"name": "rap-shm", "emptyDir": {"medium": "Memory"}},
    ]
    secret = _secret(spec)
    if secret:
        volumes.append({"name": "rap-secrets", "secret": {"secretName": secret}})
    if spec.trainer.metrics_secret_name:
        volumes.append({"name": "rap-metrics", "secret": {"secretName": spec.trainer.metrics_secret_name}})
    return volumes


def _secret(spec: RAPJobSpec) -> str | None:
    kafka: Any = spec.source.kafka
    return kafka.auth.secret_name if kafka and kafka.auth else None
