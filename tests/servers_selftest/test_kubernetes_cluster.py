"""The control plane under test is real, and survives what tests do to its servers."""

from __future__ import annotations

import pytest
from servers.kube_api import KubeError
from servers.kubernetes_cluster import KubernetesCluster

pytestmark = pytest.mark.cluster


def test_objects_outlive_a_killed_api_server(kubernetes_cluster: KubernetesCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    kubernetes_cluster.api.create(path, {"metadata": {"name": "kept"}, "data": {"k": "v"}})
    kubernetes_cluster.apiserver.kill()
    assert not kubernetes_cluster.api.is_healthy()
    kubernetes_cluster.apiserver.start()
    assert kubernetes_cluster.api.get(f"{path}/kept")["data"] == {"k": "v"}


def test_a_service_account_may_do_only_what_a_role_lets_it(
    kubernetes_cluster: KubernetesCluster, namespace: str
) -> None:
    kubeconfig = kubernetes_cluster.kubeconfig_for_service_account(namespace, "default")
    with pytest.raises(KubeError, match="403 Forbidden"):
        kubernetes_cluster.api_for(kubeconfig).get(f"/api/v1/namespaces/{namespace}/pods")
    kubernetes_cluster.kubectl(
        "create", "rolebinding", "view", "--clusterrole=view", f"--serviceaccount={namespace}:default", "-n", namespace
    )
    assert kubernetes_cluster.api_for(kubeconfig).items(f"/api/v1/namespaces/{namespace}/pods") == []
