"""Nodes without processes answer for their pods as kubelets would."""

from __future__ import annotations

import pytest
from node_agent.fake_nodes import FakeNodes
from servers.kube_api import STRATEGIC_PATCH, Object
from servers.kubernetes_cluster import KubernetesCluster
from servers.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_a_job_of_fake_pods_runs_and_a_pod_ends_as_told(
    kubernetes_cluster: KubernetesCluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    api, pods_path = kubernetes_cluster.api, f"/api/v1/namespaces/{namespace}/pods"
    spec: Object = {"containers": [{"name": "main", "image": "any"}], "restartPolicy": "Never"}
    job = {"completions": 8, "parallelism": 8, "completionMode": "Indexed", "template": {"spec": spec}}
    job_path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    api.create(job_path, {"metadata": {"name": "w"}, "spec": job})
    wait_until(lambda: api.get(f"{job_path}/w")["status"].get("ready") == 8, limit_s=60, what="eight pods to be ready")
    first = api.items(pods_path)[0]["metadata"]["name"]
    marked = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    api.patch(f"{pods_path}/{first}/status", marked, content_type=STRATEGIC_PATCH)
    wait_until(
        lambda: _is_ready(api.get(f"{pods_path}/{first}")), limit_s=60, what="the pod to be reported ready again"
    )
    fake_nodes.end(namespace, first, exit_code=137, reason="OOMKilled")
    wait_until(lambda: api.get(f"{job_path}/w")["status"].get("failed") == 1, limit_s=60, what="a failed pod")
    ended = api.get(f"{pods_path}/{first}")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    api.delete(f"{job_path}/w", propagationPolicy="Background")
    wait_until(lambda: not api.items(pods_path), limit_s=60, what="all pods to be gone")


def _is_ready(pod: Object) -> bool:
    return any((found["type"], found["status"]) == ("Ready", "True") for found in pod["status"]["conditions"])
