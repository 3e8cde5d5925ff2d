"""What a pod may ask of its node beyond running a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from node_agent.agent import NodeAgent
from node_agent.images import this_python
from node_agent.plugin import RunNodes
from servers.kafka_cluster import KafkaCluster
from servers.kube_api import Object
from servers.kubernetes_cluster import KubernetesCluster
from servers.waiting import wait_until
from servers_selftest.pods import STOP_ON_TERM, conditions, create_pod, pod_spec, wait_log, wait_phase

pytestmark = pytest.mark.cluster


def test_init_containers_secrets_and_shared_volumes_come_before_the_command(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api = kubernetes_cluster.api
    secret = {"metadata": {"name": "login"}, "stringData": {"password": "hush"}}
    api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    mounts = [{"name": "shared", "mountPath": "/shared"}, {"name": "login", "mountPath": "/login"}]
    first: Object = {"name": "first", "image": "any", "command": ["sh", "-c", "cp /login/password /shared/"]}
    spec = pod_spec("cat /shared/password; touch /new || echo read only", initContainers=[first])
    spec["volumes"] = [
        {"name": "shared", "emptyDir": {"medium": "Memory"}},
        {"name": "login", "secret": {"secretName": "login", "defaultMode": 0o400}},
    ]
    spec["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": True}
    for container in (first, spec["containers"][0]):
        container["volumeMounts"] = mounts
    wait_phase(api, create_pod(api, namespace, spec), "Succeeded")
    output = node_agent.log(namespace, "p", "main")
    assert output.startswith("hush")
    assert output.endswith("read only\n")


def test_a_volume_over_the_checkout_hides_neither_it_nor_itself(
    kubernetes_cluster: KubernetesCluster, namespace: str, run_nodes: RunNodes, tmp_path: Path
) -> None:
    checkout = tmp_path / "under" / "checkout"
    checkout.mkdir(parents=True)
    (checkout / "command").write_text("echo from the checkout; touch /$1/own && ls /$1; touch $0 || echo read only\n")
    agent = run_nodes(1, images={"*": replace(this_python(), folders=(checkout,))})
    place = str(tmp_path)
    spec = pod_spec(f"sh {checkout}/command {place}", volumes=[{"name": "tmp", "emptyDir": {}}])
    spec["containers"][0]["volumeMounts"] = [{"name": "tmp", "mountPath": place}]
    wait_phase(kubernetes_cluster.api, create_pod(kubernetes_cluster.api, namespace, spec), "Succeeded")
    said = agent.log(namespace, "p", "main").splitlines()
    assert [line for line in said if "cannot touch" not in line] == ["from the checkout", "own", "under", "read only"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["under"]


@pytest.mark.usefixtures("node_agent")
def test_a_failing_container_is_restarted_when_its_policy_says_so(
    kubernetes_cluster: KubernetesCluster, namespace: str
) -> None:
    api = kubernetes_cluster.api
    spec = pod_spec("echo run >> /runs/all; [ $(wc -l < /runs/all) = 3 ]", restartPolicy="OnFailure")
    spec["volumes"] = [{"name": "runs", "emptyDir": {}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "runs", "mountPath": "/runs"}]
    ended = wait_phase(api, create_pod(api, namespace, spec), "Succeeded")
    assert ended["status"]["containerStatuses"][0]["restartCount"] == 2


def test_a_graceful_node_shutdown_fails_its_pods_as_disrupted(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    pod = create_pod(kubernetes_cluster.api, namespace, pod_spec(STOP_ON_TERM))
    wait_log(node_agent, namespace, "p", "started")
    node_agent.shut_node_down(kubernetes_cluster.api.get(pod)["spec"]["nodeName"])
    ended = wait_phase(kubernetes_cluster.api, pod, "Failed")
    assert conditions(ended)["DisruptionTarget"] == "TerminationByKubelet"
    assert "asked to stop" in node_agent.log(namespace, "p")


def test_a_pod_waits_for_a_configmap_that_comes_late(
    kubernetes_cluster: KubernetesCluster, namespace: str, node_agent: NodeAgent
) -> None:
    api = kubernetes_cluster.api
    spec = pod_spec("echo $COLOUR")
    spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": "late"}}]
    pod = create_pod(api, namespace, spec)

    def waiting() -> str:
        statuses = api.get(pod)["status"].get("containerStatuses") or [{"state": {}}]
        return str(statuses[0]["state"].get("waiting", {}).get("reason", ""))

    wait_until(lambda: waiting() == "CreateContainerConfigError", limit_s=30, what="the pod to say what it lacks")
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "late"}, "data": {"COLOUR": "red"}})
    wait_phase(api, pod, "Succeeded")
    assert node_agent.log(namespace, "p") == "red\n"


@pytest.mark.kafka
def test_a_pod_finds_kafka_on_its_own_loopback(
    kubernetes_cluster: KubernetesCluster, namespace: str, run_nodes: RunNodes, kafka_broker: KafkaCluster
) -> None:
    agent = run_nodes(1, host_ports=kafka_broker.client_ports)
    topic = kafka_broker.create_topic()
    servers = kafka_broker.bootstrap_servers
    program = f"from kafka import KafkaProducer; p = KafkaProducer(bootstrap_servers={servers})"
    program += f"; print('offset', p.send({topic!r}, b'x').get(20).offset)"
    spec = pod_spec("")
    spec["containers"][0]["command"] = ["python", "-c", program]
    wait_phase(kubernetes_cluster.api, create_pod(kubernetes_cluster.api, namespace, spec), "Succeeded")
    assert "offset 0" in agent.log(namespace, "p")
