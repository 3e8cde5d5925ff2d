"""Nodes without machines for load tests: pods bound to them run at once, end when told, go when deleted."""

from __future__ import annotations

import queue
import threading
from typing import Any

import urllib3
from servers.kube_api import KubeApi, KubeError, Object

RUNNING = {
    "phase": "Running",
    "podIP": "127.0.0.1",
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
    "containerStatuses": [
        {
            "name": "trainer",
            "ready": True,
            "restartCount": 0,
            "image": "i",
            "imageID": "i",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
    ],
}


class FakeKubelet:
    """Some nodes with room for `pods_per_node` pods each; several threads write the pods' statuses."""

    def __init__(self, api: KubeApi, *, num_nodes: int, pods_per_node: int = 500, num_threads: int = 8) -> None:
        self._api = api
        self._num_nodes, self._pods_per_node = num_nodes, pods_per_node
        self._work: queue.SimpleQueue[tuple[str, Object]] = queue.SimpleQueue()
        self._num_threads = num_threads
        self._stopping = threading.Event()
        self.num_writes = 0

    def start(self) -> None:
        """Registers the nodes and begins to run pods."""
        for index in range(self._num_nodes):
            name = f"fake-{index}"
            self._api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
            room = {"cpu": "10000", "memory": "100Ti", "pods": str(self._pods_per_node)}
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        for target in (self._watch, *[self._write] * self._num_threads):
            threading.Thread(target=target, daemon=True).start()

    def stop(self) -> None:
        """Stops writing."""
        self._stopping.set()

    def fail(self, pod: Object, exit_code: int) -> None:
        """Ends a pod's trainer with an exit code."""
        state = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": "2026-01-01T00:00:01Z"}}
        container = {**RUNNING["containerStatuses"][0], "state": state, "ready": False}  # type: ignore[dict-item]
        self._status(pod, {"phase": "Failed", "containerStatuses": [container], "conditions": []})

    def _watch(self) -> None:
        version = self._api.get("/api/v1/pods", limit="1")["metadata"]["resourceVersion"]
        while not self._stopping.is_set():
            try:
                for event in self._api.watch("/api/v1/pods", resource_version=version):
                    item = event["object"]
                    version = item["metadata"].get("resourceVersion", version)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._seen(item)
            except (KubeError, urllib3.exceptions.HTTPError):
                continue

    def _seen(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            self._work.put(("delete", pod))
        elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
            self._work.put(("run", pod))

    def _write(self) -> None:
        while not self._stopping.is_set():
            what, pod = self._work.get()
            try:
                if what == "run":
                    self._status(pod, RUNNING)
                else:
                    self._api.delete(_path(pod), gracePeriodSeconds=0, preconditions={"uid": pod["metadata"]["uid"]})
            except KubeError as refused:
                if refused.status not in (404, 409):
                    self._work.put((what, pod))
            except urllib3.exceptions.HTTPError:
                self._work.put((what, pod))

    def _status(self, pod: Object, status: Any) -> None:
        self.num_writes += 1
        self._api.patch(f"{_path(pod)}/status", {"status": status})


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
