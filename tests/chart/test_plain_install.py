"""manifests/install.yaml is the chart with its defaults, and installs an operator that works."""

from __future__ import annotations

import json

import pytest
import yaml
from chart.plain_install import INSTALL, plain_install
from chart.rendering import NAMESPACE, ROOT, render, rendered
from chart.strict_cluster import StrictCluster
from node_agent.agent import NodeAgent
from servers.waiting import wait_until

CRD_FILE = ROOT / "manifests" / "crd" / "rapjobs.rap.dev.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.mark.usefixtures("helm")
def test_the_plain_install_is_rendered_from_the_chart() -> None:
    assert INSTALL.read_text() == plain_install(), "run: python tests/chart/plain_install.py"


@pytest.mark.usefixtures("helm")
def test_the_plain_install_has_every_object_of_the_chart() -> None:
    plain = {(item["kind"], item["metadata"]["name"]) for item in yaml.safe_load_all(INSTALL.read_text())}
    chart = {
        (item["kind"], item["metadata"]["name"])
        for item in json.loads(rendered("default"))
        if "helm.sh/hook" not in item["metadata"].get("annotations", {}) and item["kind"] != "CustomResourceDefinition"
    }
    assert plain == chart | {("Namespace", NAMESPACE)}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures("helm")
def test_kubectl_alone_installs_an_operator_that_runs_jobs_and_removes_it(
    kubernetes_cluster: StrictCluster, node_agent: NodeAgent
) -> None:
    del node_agent
    files = ("-f", str(CRD_FILE), "-f", str(INSTALL))
    kubernetes_cluster.kubectl("apply", "--server-side", *files)
    jobs = f"/apis/rap.dev/v1alpha1/namespaces/{NAMESPACE}/rapjobs"
    kubernetes_cluster.wait_served(jobs)
    template = {"spec": {"initContainers": [], "containers": [{"name": "trainer", "command": ["sh", "-c", "exit 0"]}]}}
    smoke = render({"test": {"podTemplate": template}})
    text = next(item["data"]["job.json"] for item in smoke if "job.json" in item.get("data", {}))
    kubernetes_cluster.api.create(jobs, json.loads(text))
    path = f"{jobs}/rap-test"

    def is_complete() -> bool:
        return (kubernetes_cluster.api.get(path).get("status") or {}).get("phase") == "Completed"

    wait_until(is_complete, limit_s=200, what="the job to complete")
    kubernetes_cluster.kubectl("delete", "--wait=false", *files)
    for gone in (f"/api/v1/namespaces/{NAMESPACE}", f"{CRDS}/rapjobs.rap.dev"):
        wait_until(lambda gone=gone: kubernetes_cluster.api.find(gone) is None, limit_s=90, what=f"{gone} to be gone")  # type: ignore[misc]
