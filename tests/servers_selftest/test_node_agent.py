"""Pods really run: two nodes, names that resolve, volumes that follow, and nodes that die."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from node_agent.agent import NodeAgent
from rap_contract.status import time_s
from servers.kube_api import KubeApi, Object
from servers.kubernetes_cluster import KubernetesCluster
from servers.processes import is_listening
from servers.waiting import wait_until
from servers_selftest.pods import STOP_ON_TERM, conditions, create_pod, pod_spec, wait_log, wait_phase

pytestmark = pytest.mark.cluster

# A name is gone with its pod, so neither may end before the other has found it.
FIND_BOTH = """
until getent hosts w-0.w && getent hosts w-1.w; do sleep 0.05; done
touch /met/$(hostname)
until [ -e /met/w-0 ] && [ -e /met/w-1 ]; do sleep 0.05; done
hostname
"""


def test_an_indexed_job_runs_on_two_nodes_whose_pods_find_each_other(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent, tmp_path: Path
) -> None:
    api = kubernetes_cluster.api
    service = {"clusterIP": "None", "selector": {"app": "w"}, "publishNotReadyAddresses": True}
    api.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "w"}, "spec": service})
    spec = pod_spec(FIND_BOTH, subdomain="w", volumes=[{"name": "met", "hostPath": {"path": str(tmp_path)}}])
    spec["containers"][0]["volumeMounts"] = [{"name": "met", "mountPath": "/met"}]
    template = {"metadata": {"labels": {"app": "w"}}, "spec": spec}
    job = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", {"metadata": {"name": "w"}, "spec": job})
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/w"
    wait_until(lambda: api.get(path)["status"].get("succeeded") == 2, limit_s=60, what="both pods to succeed")
    pods = api.items(f"/api/v1/namespaces/{namespace}/pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == set(node_agent.node_names)
    output = kubernetes_cluster.kubectl("logs", "-n", namespace, pods[0]["metadata"]["name"])
    assert output.splitlines()[-1] == pods[0]["spec"]["hostname"]


def test_pods_listen_on_the_same_port_and_see_the_servers_of_this_machine(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api = kubernetes_cluster.api
    script = f"echo > /dev/tcp/127.0.0.1/{kubernetes_cluster.ports.apiserver} && exec python -m http.server 8000"
    spec = pod_spec(script)
    spec["containers"][0]["command"][0] = "bash"
    spec["containers"][0]["readinessProbe"] = {"httpGet": {"port": 8000, "path": "/"}, "periodSeconds": 1}
    for path in [create_pod(api, namespace, spec, name) for name in ("a", "b")]:
        wait_until(partial(_is_ready, api, path), limit_s=60, what=f"{path} to be ready")
        assert is_listening(8000, api.get(path)["status"]["podIP"])


def test_a_slow_node_starts_its_pods_late_and_the_other_does_not(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api, delay_s = kubernetes_cluster.api, 4.0
    slow, other = node_agent.node_names
    node_agent.slow_node(slow, start_delay_s=delay_s)
    try:
        paths = [create_pod(api, namespace, pod_spec("sleep 1000", nodeName=node), node) for node in (slow, other)]
        late, prompt = (wait_phase(api, path, "Running") for path in paths)
    finally:
        node_agent.slow_node(slow, start_delay_s=0.0)
    waited_s = started_s(late) - time_s(late["metadata"]["creationTimestamp"])
    assert waited_s >= delay_s - 1  # the server's times are of whole seconds
    assert started_s(prompt) <= started_s(late)


def started_s(pod: Object) -> float:
    return time_s(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


def test_a_changed_configmap_reaches_a_running_pod(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api, path = kubernetes_cluster.api, f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(path, {"metadata": {"name": "plan"}, "data": {"version": "one"}})
    spec = pod_spec("cat /etc/plan/version; until grep two /etc/plan/version; do sleep 0.05; done")
    spec["volumes"] = [{"name": "plan", "configMap": {"name": "plan"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "plan", "mountPath": "/etc/plan"}]
    pod = create_pod(api, namespace, spec)
    wait_log(node_agent, namespace, "p", "one")
    api.patch(f"{path}/plan", {"data": {"version": "two"}})
    wait_phase(api, pod, "Succeeded")
    assert not Path("/etc/plan").exists(), "the volume must be mounted in the pod only"


def test_a_deleted_pod_is_asked_to_stop_before_it_is_gone(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api = kubernetes_cluster.api
    pod = create_pod(api, namespace, pod_spec(STOP_ON_TERM))
    wait_log(node_agent, namespace, "p", "started")
    api.delete(pod)
    wait_until(lambda: api.find(pod) is None, limit_s=30, what="the pod to be gone")
    assert "asked to stop" in node_agent.log(namespace, "p")


def test_a_pod_out_of_memory_says_so(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    pod = create_pod(kubernetes_cluster.api, namespace, pod_spec(STOP_ON_TERM))
    wait_log(node_agent, namespace, "p", "started")
    node_agent.oom(namespace, "p")
    ended = wait_phase(kubernetes_cluster.api, pod, "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_an_evicted_pod_carries_the_disruption_condition(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api = kubernetes_cluster.api
    pod = create_pod(api, namespace, {**pod_spec(STOP_ON_TERM), "terminationGracePeriodSeconds": 30})
    api.patch(pod, {"metadata": {"finalizers": ["tests/keep"]}})
    wait_log(node_agent, namespace, "p", "started")
    node_agent.evict(namespace, "p")
    ended = wait_phase(api, pod, "Failed")
    api.patch(pod, {"metadata": {"finalizers": None}})
    assert conditions(ended)["DisruptionTarget"] == "EvictionByEvictionAPI"
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_a_pod_on_a_lost_node_is_stuck_terminating_until_the_node_returns(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api = kubernetes_cluster.api
    pod = create_pod(api, namespace, pod_spec(STOP_ON_TERM))
    wait_log(node_agent, namespace, "p", "started")
    process = node_agent.pid(namespace, "p")
    node = wait_phase(api, pod, "Running")["spec"]["nodeName"]
    node_agent.lose_node(node)
    assert not Path(f"/proc/{process}").exists(), "processes die with their node"
    wait_until(lambda: "deletionTimestamp" in api.get(pod)["metadata"], limit_s=90, what="Kubernetes to give up")
    assert api.get(pod)["status"]["phase"] == "Running", "nobody is left to say otherwise"
    node_agent.restore_node(node)
    wait_until(partial(_is_gone, api, pod), limit_s=60, what="the returned node to let the pod go")


def _is_ready(api: KubeApi, path: str) -> bool:
    return conditions(api.get(path)).get("Ready") == "True"


def _is_gone(api: KubeApi, path: str) -> bool:
    return api.find(path) is None
