"""The chart on a real API server: every object accepted, installed, tested, upgraded, rolled back, removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.rendering import CHART, MATRIX, NAMESPACE, HelmError, Object, render, rendered
from chart.strict_cluster import StrictCluster
from node_agent.agent import NodeAgent
from rap_contract.crd import NAME as CRD_NAME
from rap_operator.naming import MANAGER
from rap_operator.pages import http_fetch
from servers.kube_api import KubeError
from servers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("helm")]

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
JOBS = f"/apis/rap.dev/v1alpha1/namespaces/{NAMESPACE}/rapjobs"
SCRIPT = {  # the test's job without training: what is tested here is the chart
    "spec": {"initContainers": [], "containers": [{"name": "trainer", "command": ["sh", "-c", "exit 0"]}]},
}
QUICK: dict[str, Any] = {"test": {"podTemplate": SCRIPT, "timeoutSeconds": 90}, "readinessProbe": {"periodSeconds": 1}}
GONE = {**QUICK, "crds": {"keep": False}}


@pytest.fixture
def cluster(kubernetes_cluster: StrictCluster) -> StrictCluster:
    kubernetes_cluster.restricted_namespace(NAMESPACE)
    return kubernetes_cluster


def previous_version(folder: Path) -> str:
    """The chart as a release before this one: another version, and a CRD that lacks a field of today's."""
    chart = folder / "rap"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9", "appVersion": "0.0.9"}))
    crd = chart / "files" / "crd.yaml"
    older = yaml.safe_load(crd.read_text())
    del _spec_properties(older)["restartNonce"]
    crd.write_text(yaml.safe_dump(older, sort_keys=False))
    return str(chart)


def _spec_properties(crd: Object) -> dict[str, Any]:
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    properties: dict[str, Any] = schema["properties"]["spec"]["properties"]
    return properties


def image_tags(cluster: StrictCluster) -> str:
    deployment = cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/rap")
    image: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return image.rpartition(":")[2]


@pytest.fixture
def monitored(cluster: StrictCluster, monitoring_kinds: Path) -> StrictCluster:
    """A cluster with the Prometheus operator's own kinds."""
    kinds = ("podmonitors", "prometheusrules", "servicemonitors")
    for kind in kinds:
        definition = yaml.safe_load((monitoring_kinds / f"monitoring.coreos.com_{kind}.yaml").read_text())
        cluster.api.apply(f"{CRD.rpartition('/')[0]}/{definition['metadata']['name']}", definition)
    for kind in kinds:
        cluster.wait_served(f"/apis/monitoring.coreos.com/v1/{kind}")
    return cluster


def test_every_rendered_object_is_accepted_by_the_server(monitored: StrictCluster) -> None:
    cluster = monitored
    for name in ("ads", "ranking", "watch"):
        cluster.restricted_namespace(name)
    num_objects = 0
    cases: dict[str, list[Object]] = {case: json.loads(rendered(case)) for case in MATRIX}
    cases["boards and alerts"] = render({"dashboards": {"enabled": True}, "alerts": {"enabled": True}})
    for case, items in cases.items():
        for item in items:
            if item["kind"] == "ServiceAccount":  # the pods' admission wants to see it
                cluster.api.apply(f"{cluster.path_of(item)}/{item['metadata']['name']}", item)
        for item in items:
            try:
                cluster.dry_run(item)
            except KubeError as refused:
                pytest.fail(f"{case}: {item['kind']} {item['metadata']['name']}: {refused}")
            num_objects += 1
        for item in items:
            if item["kind"] == "ServiceAccount":
                cluster.api.delete(f"{cluster.path_of(item)}/{item['metadata']['name']}")
    assert num_objects > 60


def test_the_monitoring_kinds_refuse_typos(monitored: StrictCluster) -> None:
    monitor = next(item for item in json.loads(rendered("monitoring")) if item["kind"] == "ServiceMonitor")
    monitor["spec"]["endpoints"][0]["scrapeTimout"] = "5s"
    with pytest.raises(KubeError, match="scrapeTimout"):
        monitored.dry_run(monitor)


def test_install_test_upgrade_rollback_and_uninstall_leave_nothing(
    cluster: StrictCluster, node_agent: NodeAgent, tmp_path: Path
) -> None:
    before = previous_version(tmp_path)
    notes = cluster.helm_install(chart=before, values=GONE)
    assert "helm test rap -n rap-system --logs" in notes
    assert "restartNonce" not in _spec_properties(cluster.api.get(CRD))
    job = json.loads(_test_job())
    job["metadata"]["name"] = "kept"
    job["spec"]["suspend"] = True
    cluster.api.create(JOBS, job)
    wait_until(lambda: _phase(cluster, "kept") == "Suspended", limit_s=60, what="the installed operator to see a job")

    cluster.helm("upgrade", str(CHART), "--wait", "--timeout=120s", values=GONE)
    assert "restartNonce" in _spec_properties(cluster.api.get(CRD)), "helm upgrade upgrades the CRD"
    assert image_tags(cluster) == "0.1.0"
    cluster.api.patch(f"{JOBS}/kept", {"spec": {"restartNonce": 7}})
    assert cluster.api.get(f"{JOBS}/kept")["spec"]["restartNonce"] == 7
    said = cluster.helm("test", "--timeout=120s", "--logs")
    assert "Phase:          Succeeded" in said
    assert "phase Completed" in said

    cluster.helm("rollback", "1", "--wait", "--timeout=120s")
    assert image_tags(cluster) == "0.0.9"
    assert _phase(cluster, "kept") == "Suspended"
    _wait_until_garbage_is_collected(cluster)
    cluster.helm("uninstall", "--wait", "--timeout=120s")
    wait_until(lambda: not cluster.everything_of_the_release(), limit_s=60, what="everything of the release to be gone")
    assert cluster.api.find(CRD) is None
    children = {"labelSelector": f"app.kubernetes.io/managed-by={MANAGER}"}
    for kind in ("configmaps", "services", "pods"):
        path = f"/api/v1/{kind}"
        wait_until(lambda path=path: not cluster.api.items(path, **children), limit_s=90, what=f"no {path}")  # type: ignore[misc]


def test_a_kept_crd_survives_with_its_jobs_and_the_next_install_takes_it_over(cluster: StrictCluster) -> None:
    values = {**QUICK, "replicaCount": 0}
    cluster.helm_install(values=values)
    job = json.loads(_test_job())
    cluster.wait_served(JOBS)
    cluster.api.create(JOBS, job)
    cluster.helm("uninstall", "--wait", "--timeout=60s")
    assert cluster.everything_of_the_release() == [f"customresourcedefinitions/{CRD_NAME}"]
    assert cluster.api.find(f"{JOBS}/{job['metadata']['name']}") is not None
    cluster.helm_install(values={**values, "crds": {"keep": False}})
    assert cluster.api.find(f"{JOBS}/{job['metadata']['name']}") is not None
    cluster.helm("uninstall", "--wait", "--timeout=60s")
    wait_until(lambda: cluster.api.find(CRD) is None, limit_s=60, what="the CRD to be gone")


@pytest.mark.slow
def test_two_replicas_behind_encrypted_metrics_elect_one_and_the_other_takes_over(
    cluster: StrictCluster, node_agent: NodeAgent
) -> None:
    del node_agent
    pair = cluster.authority.issue("operator-metrics", user="metrics")
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    data = {"tls.crt": pair.certificate.read_text(), "tls.key": pair.key.read_text(), "token": "open-sesame"}
    cluster.api.create(secrets, {"metadata": {"name": "operator-metrics"}, "stringData": data})
    metrics = {"tls": {"secretName": "operator-metrics"}, "bearerToken": {"secretName": "operator-metrics"}}
    cluster.helm_install(values={**GONE, "replicaCount": 2, "metrics": metrics})  # waits for the probes, over HTTPS
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/rap"
    try:
        first = cluster.api.get(lease)["spec"]["holderIdentity"]
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        selector = "app.kubernetes.io/component=operator"
        by_name = {pod["metadata"]["name"]: pod for pod in cluster.api.items(pods, labelSelector=selector)}
        assert len(by_name) == 2
        assert first in by_name
        url = f"https://{by_name[first]['status']['podIP']}:8080/metrics"
        token = Path(pair.key.parent / "token")
        token.write_text("open-sesame")
        assert "rap_operator_leader 1.0" in http_fetch(ca_file=cluster.authority.certificate, token_file=token)(url)
        with pytest.raises(ValueError, match="401"):
            http_fetch(ca_file=cluster.authority.certificate)(url)
        cluster.api.delete(f"{pods}/{first}")

        def is_another() -> bool:
            return cluster.api.get(lease)["spec"]["holderIdentity"] not in ("", first)

        wait_until(is_another, limit_s=90, what="another leader")
        job = json.loads(_test_job())
        cluster.api.create(JOBS, job)
        name = job["metadata"]["name"]
        wait_until(lambda: _phase(cluster, name) == "Completed", limit_s=90, what="the job to be run")
    finally:
        cluster.helm("uninstall", "--wait", "--timeout=60s")
        cluster.api.delete(f"{secrets}/operator-metrics")
        wait_until(lambda: cluster.api.find(CRD) is None, limit_s=60, what="the CRD to be gone")


@pytest.mark.slow
def test_helm_test_fails_when_the_job_does(cluster: StrictCluster, node_agent: NodeAgent) -> None:
    failing = {"spec": {"initContainers": [], "containers": [{"name": "trainer", "command": ["sh", "-c", "exit 2"]}]}}
    cluster.helm_install(values={**GONE, "test": {"podTemplate": failing, "timeoutSeconds": 90}})
    try:
        with pytest.raises(HelmError):
            cluster.helm("test", "--timeout=120s")
        log = node_agent.log(NAMESPACE, "rap-test")
        assert "phase Failed" in log
        assert "Failed=True InvalidJob" in log
    finally:
        cluster.helm("uninstall", "--wait", "--timeout=60s")
        cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/rap-test", gracePeriodSeconds=0)
        wait_until(lambda: cluster.api.find(CRD) is None, limit_s=60, what="the CRD to be gone")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_helm_test_really_trains(cluster: StrictCluster, node_agent: NodeAgent) -> None:
    del node_agent
    cluster.helm_install(values={"crds": {"keep": False}})
    try:
        assert "phase Completed" in cluster.helm("test", "--timeout=600s", "--logs", limit_s=700)
    finally:
        cluster.helm("uninstall", "--wait", "--timeout=60s")


def test_the_server_refuses_factories_and_images_that_are_not_listed(cluster: StrictCluster) -> None:
    admission = {"modelFactories": ["ads.models:*", "ranking:one"], "images": ["registry.example/*"]}
    items = render({"admission": admission})
    policies = [item for item in items if item["kind"].startswith("ValidatingAdmissionPolicy")]
    assert len(policies) == 2
    crd = next(item for item in items if item["kind"] == "CustomResourceDefinition")
    cluster.api.apply(CRD, crd)
    cluster.wait_served(JOBS)
    try:
        for item in policies:
            cluster.api.create(cluster.path_of(item), item)

        def verdict(factory: str | None, image: str | None, template: Object | None = None) -> str:
            job = json.loads(_test_job())
            job["metadata"]["name"] = "judged"
            model = {"dlrm": {"bottom": [8], "top": [1]}} if factory is None else {"factory": factory}
            trainer = {"podTemplate": template or {}, **({} if image is None else {"image": image})}
            job["spec"] |= {"model": model, "trainer": trainer}
            try:
                cluster.api.request("POST", JOBS, body=job, query={"dryRun": "All"})
            except KubeError as refused:
                return str(refused)
            return "allowed"

        good = "registry.example/rap-trainer:1"
        wait_until(lambda: "none of those" in verdict("os:system", good), limit_s=60, what="the policy to be in force")
        assert verdict(None, good) == verdict("ads.models:deep", good) == verdict("ranking:one", good) == "allowed"
        assert "spec.model.factory is none of those" in verdict("ranking:two", good)
        assert "an image of the trainer's pods is none of those" in verdict(None, "elsewhere/rap:1")
        assert "an image of the trainer's pods is none of those" in verdict(None, None), "the CRD's default counts too"
        for part in ("containers", "initContainers"):
            template = {"spec": {part: [{"name": "more", "image": "elsewhere/more:1"}, {"name": "trainer"}]}}
            assert "an image of the trainer's pods is none of those" in verdict(None, good, template)
            template["spec"][part][0]["image"] = "registry.example/more:1"
            assert verdict(None, good, template) == "allowed"
        assert verdict(None, good, {"metadata": {"labels": {"a": "b"}}}) == "allowed"
    finally:
        for item in [*policies, crd]:
            cluster.api.delete(f"{cluster.path_of(item)}/{item['metadata']['name']}")
        wait_until(lambda: cluster.api.find(CRD) is None, limit_s=60, what="the CRD to be gone")


def _test_job() -> str:
    smoke = next(i for i in render(QUICK) if i["kind"] == "ConfigMap" and "job.json" in i["data"])
    text: str = smoke["data"]["job.json"]
    return text


def _wait_until_garbage_is_collected(cluster: StrictCluster) -> None:
    """Waits until the children of a deleted job go.

    Kubernetes' garbage collector looks for new kinds every 30 s, and its watch of a kind begins anew seconds after the CRD
    changed. It does not learn of jobs that go meanwhile, and cannot look for owners of a kind that is gone.
    """
    job = json.loads(_test_job())
    job["metadata"]["name"] = "probe"
    job["spec"]["suspend"] = True
    cluster.api.create(JOBS, job)
    wait_until(lambda: _phase(cluster, "probe") == "Suspended", limit_s=60, what="the probe to be seen")
    configs, mine = f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"labelSelector": "rap.dev/job=probe"}
    assert cluster.api.items(configs, **mine)
    cluster.api.delete(f"{JOBS}/probe")
    wait_until(lambda: not cluster.api.items(configs, **mine), limit_s=90, what="the probe's children to go")


def _phase(cluster: StrictCluster, name: str) -> str:
    return str((cluster.api.get(f"{JOBS}/{name}").get("status") or {}).get("phase", ""))
