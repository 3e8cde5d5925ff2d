"""Pods for the tests of this folder, and waiting for what becomes of them."""

from __future__ import annotations

from typing import Any

from node_agent.agent import NodeAgent
from servers.kube_api import KubeApi, Object
from servers.waiting import wait_until

STOP_ON_TERM = "trap 'echo asked to stop; exit 3' TERM; echo started; while :; do sleep 0.05; done"


def pod_spec(script: str, **more: Any) -> Object:
    """Return the spec of a pod that takes a whole node's GPUs and runs a shell script."""
    container: Object = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    container["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    return {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, **more}


def create_pod(api: KubeApi, namespace: str, spec: Object, name: str = "p") -> str:
    """Create a pod, return its path."""
    api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def wait_phase(api: KubeApi, path: str, phase: str) -> Object:
    """Wait for a phase, return the pod in it."""

    def reached() -> Object | None:
        pod = api.get(path)
        return pod if pod["status"]["phase"] == phase else None

    found = wait_until(reached, limit_s=60, what=f"{path} to be {phase}")
    assert found is not None
    return found


def wait_log(agent: NodeAgent, namespace: str, pod: str, text: str) -> None:
    """Wait for words in a pod's output."""
    wait_until(lambda: text in agent.log(namespace, pod), limit_s=30, what=f"{text!r} in the log of {pod}")


def conditions(pod: Object) -> dict[str, str]:
    """Return the reasons (or else the states) of a pod's conditions; a pod no scheduler has seen yet has none."""
    return {found["type"]: found.get("reason") or found["status"] for found in pod["status"].get("conditions", [])}
