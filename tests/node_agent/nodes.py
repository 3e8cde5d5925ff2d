"""Node objects and their heartbeats: what tells Kubernetes that a machine exists and is well."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import urllib3
from servers.kube_api import STRATEGIC_PATCH, KubeApi, KubeError, Object

HEARTBEAT_S = 2.0
LEASE_S = 10
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A machine to pretend: its name and what it offers."""

    name: str
    gpus: int = 4
    cpus: int = 32
    memory: str = "128Gi"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Object] = ()

    def resources(self) -> dict[str, str]:
        """Return what the scheduler may give away."""
        return {
            "cpu": str(self.cpus),
            "memory": self.memory,
            "pods": str(self.pods),
            "ephemeral-storage": "100Gi",
            "nvidia.com/gpu": str(self.gpus),
        }


class Heartbeats:
    """Keeps the nodes of one agent alive in the API, except those that are lost."""

    def __init__(self, api: KubeApi, nodes: Sequence[NodeSpec], *, log_port: int) -> None:
        self._api = api
        self._nodes = {node.name: node for node in nodes}
        self._log_port = log_port
        self._lost: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="node-heartbeats")

    def start(self) -> None:
        """Register all nodes, then keep them alive in the background."""
        for node in self._nodes.values():
            self._api.create("/api/v1/nodes", _node(node))
            self._beat(node)
        self._thread.start()

    def stop(self) -> None:
        """Take the nodes out of the API."""
        self._stopping.set()
        self._thread.join(HEARTBEAT_S + 5.0)
        for name in self._nodes:
            for path in (f"/api/v1/nodes/{name}", f"{LEASES}/{name}"):
                with suppress(KubeError, urllib3.exceptions.HTTPError):
                    self._api.delete(path)

    def lose(self, name: str) -> None:
        """Say nothing of a node any more, as if its power had been cut."""
        self._lost.add(name)

    def restore(self, name: str) -> None:
        """Report a lost node again."""
        self._lost.discard(name)
        self._beat(self._nodes[name])

    def is_lost(self, name: str) -> bool:
        """Whether a node is silent."""
        return name in self._lost

    def _run(self) -> None:
        while not self._stopping.wait(HEARTBEAT_S):
            for node in self._nodes.values():
                if node.name not in self._lost:
                    with suppress(KubeError, urllib3.exceptions.HTTPError, OSError):
                        self._beat(node)

    def _beat(self, node: NodeSpec) -> None:
        now = datetime.now(UTC)
        self._api.patch(
            f"/api/v1/nodes/{node.name}/status", _status(node, now, self._log_port), content_type=STRATEGIC_PATCH
        )
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node.name, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": node.name,
                "leaseDurationSeconds": LEASE_S,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        self._api.apply(f"{LEASES}/{node.name}", lease, owner="node-agent")


def _node(node: NodeSpec) -> Object:
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **node.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"providerID": f"local://{node.name}", "taints": list(node.taints)},
    }


def _status(node: NodeSpec, now: datetime, log_port: int) -> Object:
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "process node agent"}
    calm = [
        {"type": kind, "status": "False", "reason": "Sufficient"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    return {
        "status": {
            "capacity": node.resources(),
            "allocatable": node.resources(),
            "conditions": [{**condition, "lastHeartbeatTime": stamp} for condition in [ready, *calm]],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": node.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}},
            "nodeInfo": _INFO,
        }
    }


_INFO = {
    "machineID": "",
    "systemUUID": "",
    "bootID": "",
    "kernelVersion": "",
    "osImage": "process node agent",
    "containerRuntimeVersion": "process://1",
    "kubeletVersion": "v1.37.2",
    "kubeProxyVersion": "",
    "operatingSystem": "linux",
    "architecture": "amd64",
}
