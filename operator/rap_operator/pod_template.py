"""The pods of an attempt: torchrun on each node, meeting at index 0; the user's podTemplate laid over it. Pure."""

from __future__ import annotations

from typing import Any

from rap_contract import pod
from rap_contract.job import RAPJobSpec
from rap_contract.status import Attempt, time_s

from rap_operator import naming
from rap_operator.observed import Subject
from rap_operator.overlay import merged
from rap_operator.views import Object

# torchrun waits 30 s for its ranks after SIGTERM (torch 2.11); a checkpoint and the container's own end come on top.
GRACE_S = 120
# Kubernetes waits 300 s before it evicts from a lost node; a whole group stands still meanwhile.
LOST_NODE_S = 30
RENDEZVOUS_TIMEOUT_S = 900  # images may be pulled on some nodes only
GPU = "nvidia.com/gpu"
INDEX = "$(JOB_COMPLETION_INDEX)"  # set in every container by the Job controller, expanded by the kubelet


def pod_template(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> Object:
    """The template of an attempt's pods, the trainer's container first."""
    template = _own(subject, attempt, spec)
    overlaid: Object = merged(template, spec.trainer.pod_template)
    containers = overlaid["spec"]["containers"]
    overlaid["spec"]["containers"] = sorted(containers, key=lambda container: container.get("name") != pod.CONTAINER)
    metadata = overlaid["metadata"]
    metadata["labels"] = dict(metadata.get("labels") or {})
    return overlaid


def command(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> list[str]:
    """What a pod runs."""
    nodes = attempt.nodes
    # A single node needs no name service to find itself.
    address = "127.0.0.1" if nodes == 1 else naming.host(subject.base, attempt.number, 0)
    return [
        "torchrun",
        f"--nnodes={nodes}",
        f"--nproc-per-node={spec.trainer.ranks_per_node}",
        f"--node-rank={INDEX}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={address}:{pod.PORT_RENDEZVOUS}",
        f"--rdzv-conf=timeout={RENDEZVOUS_TIMEOUT_S}",
        "--max-restarts=0",
        "-m",
        "rap_trainer.cli",
        "run",
        pod.JOB_FILE,
    ]


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
    if trainer.metrics_port:
        ports.append({"name": "metrics", "containerPort": trainer.metrics_port})
    mounts: list[Object] = [
        {"name": "rap-job", "mountPath": pod.JOB_MOUNT, "readOnly": True},
        {"name": "rap-plan", "mountPath": pod.PLAN_MOUNT, "readOnly": True},
        {"name": "rap-shm", "mountPath": pod.SHM_MOUNT},
    ]
    if _secret(spec):
        mounts.append({"name": "rap-secrets", "mountPath": pod.SECRET_MOUNT, "readOnly": True})
    container: Object = {
        "name": pod.CONTAINER,
        "image": trainer.image,
        "command": command(subject, attempt, spec),
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
        "PYTHONUNBUFFERED": "1",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _volumes(subject: Subject, attempt: Attempt, spec: RAPJobSpec) -> list[Object]:
    volumes: list[Object] = [
        {"name": "rap-job", "configMap": {"name": naming.spec_name(subject.base, attempt.revision)}},
        {"name": "rap-plan", "configMap": {"name": naming.plan_name(subject.base), "optional": True}},
        {"name": "rap-shm", "emptyDir": {"medium": "Memory"}},
    ]
    secret = _secret(spec)
    if secret:
        volumes.append({"name": "rap-secrets", "secret": {"secretName": secret}})
    return volumes


def _secret(spec: RAPJobSpec) -> str | None:
    kafka: Any = spec.source.kafka
    return kafka.auth.secret_name if kafka and kafka.auth else None
