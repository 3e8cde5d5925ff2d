"""Nodes without processes, for loads of thousands of pods: a bound pod is Running at once and ends when told.

Addresses of pods are local to this machine, so a connection to one is refused at once, or answered
by any server that listens on all addresses: a load test can serve the metrics of all pods with one.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import urllib3
from node_agent.nodes import Heartbeats, NodeSpec
from node_agent.status import ContainerStatus, PodFacts, Running, Terminated, pod_status
from node_agent.watched import WatchedObjects
from servers.kube_api import STRATEGIC_PATCH, KubeApi, KubeError, Object

log = logging.getLogger(__name__)

NUM_WRITERS = 4  # as many requests at once as keep a two-core API server busy
RETRY_S = 0.3


@dataclass(frozen=True, kw_only=True)
class End:
    """How a pod shall end."""

    exit_code: int = 0
    reason: str = "Completed"


class FakeNodes:
    """Some nodes of one cluster, which may be as large as a test likes."""

    def __init__(self, api: KubeApi, nodes: Sequence[NodeSpec]) -> None:
        self._api = api
        self._names = {node.name for node in nodes}
        self._heartbeats = Heartbeats(api, nodes, log_port=0)
        self._pods = WatchedObjects(api, "/api/v1/pods", self._on_pod)
        self._ends: dict[str, End] = {}
        self._due: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
        self._subnet = f"10.{random.SystemRandom().randint(64, 250)}"
        self._addresses = itertools.count(2)
        self._writers = [threading.Thread(target=self._write, daemon=True) for _ in range(NUM_WRITERS)]

    def start(self) -> None:
        """Register the nodes and begin to answer for their pods."""
        self._route("add")
        self._heartbeats.start()
        for writer in self._writers:
            writer.start()
        self._pods.start()

    def stop(self) -> None:
        """Take the nodes out of the API."""
        self._pods.stop()
        for _ in self._writers:
            self._due.put(None)
        for writer in self._writers:
            writer.join(10.0)
        self._heartbeats.stop()
        self._route("delete")

    def end(self, namespace: str, pod: str, *, exit_code: int = 0, reason: str | None = None) -> None:
        """End a running pod with an exit code, and a reason such as OOMKilled."""
        found = self._pods.find(namespace, pod)
        if found is None:
            raise LookupError(f"no pod {namespace}/{pod}")
        default = "Error" if exit_code else "Completed"
        self._ends[found["metadata"]["uid"]] = End(exit_code=exit_code, reason=reason or default)
        self._due.put(found)

    def _on_pod(self, pod: Object, is_gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        if is_gone:
            self._ends.pop(uid, None)
        elif pod["spec"].get("nodeName") in self._names:
            is_new = "startTime" not in pod.get("status", {})
            if is_new or "deletionTimestamp" in pod["metadata"] or (uid not in self._ends and _was_marked(pod)):
                self._due.put(pod)

    def _write(self) -> None:
        while pod := self._due.get():
            try:
                self._report(pod)
            except KubeError as refused:
                if refused.status == 429 or refused.status >= 500:
                    time.sleep(RETRY_S)
                    self._due.put(pod)
                elif refused.status not in (404, 409):
                    log.warning("pod %s: the API server refuses: %s", pod["metadata"]["name"], refused)
            except (urllib3.exceptions.HTTPError, OSError):
                time.sleep(RETRY_S)
                self._due.put(pod)

    def _report(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        is_deleted = "deletionTimestamp" in metadata
        end = self._ends.get(metadata["uid"])
        if is_deleted and end is None and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            end = End(exit_code=143, reason="Error")  # what a process that heeds SIGTERM leaves
        if end or not is_deleted:
            body = {"metadata": {"uid": metadata["uid"]}, "status": self._status(pod, end)}
            self._api.patch(f"{path}/status", body, content_type=STRATEGIC_PATCH)
        if is_deleted:
            self._api.delete(path, gracePeriodSeconds=0, preconditions={"uid": metadata["uid"]})

    def _status(self, pod: Object, end: End | None) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = Terminated(exit_code=end.exit_code, reason=end.reason, finished_at=now) if end else None
        containers = [
            ContainerStatus(
                name=container["name"],
                image=container["image"],
                is_ready=end is None,
                state=state or Running(started_at=now),
            )
            for container in pod["spec"]["containers"]
        ]
        third, fourth = divmod(next(self._addresses) % 60_000, 250)
        address = pod.get("status", {}).get("podIP") or f"{self._subnet}.{third}.{fourth + 1}"
        facts = PodFacts(pod_ip=address, host_ip="127.0.0.1", started_at=now, is_initialized=True)
        before: Object = pod.get("status", {})
        return pod_status(facts, containers, [], is_over=end is not None, now=now, before=before)

    def _route(self, verb: str) -> None:
        command = ["ip", "route", verb, "local", f"{self._subnet}.0.0/16", "dev", "lo"]
        subprocess.run(command, check=True, capture_output=True)


def _was_marked(pod: Object) -> bool:
    """Whether the node controller took a running pod's readiness away, as it does when a busy machine is silent."""
    status = pod.get("status", {})
    ready = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    return bool(status.get("phase") == "Running" and ready.get("Ready") == "False")
