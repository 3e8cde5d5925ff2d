"""What the chart's PodMonitor makes a real Prometheus scrape: every rank of every pod, under names that boards know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chart.rendering import render
from dashboards.prometheus_server import PrometheusServer
from operator_world.on_server import OnServer, install_crd
from operator_world.world import rapjob
from servers.kubernetes_cluster import KubernetesCluster
from servers.waiting import wait_until

NODES, RANKS_PER_NODE, PORT = 2, 3, 9500


def scrape_config(monitor: dict[str, Any], *, kubeconfig: Path, namespace: str) -> dict[str, Any]:
    """The scrape that the Prometheus operator makes of a PodMonitor with one endpoint, as far as this one goes."""
    spec = monitor["spec"]
    endpoint = spec["podMetricsEndpoints"][0]
    labels = spec["selector"]["matchLabels"].items()
    selects = [
        {
            "action": "keep",
            "source_labels": ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name)],
            "regex": re.escape(value),
        }
        for name, value in labels
    ]
    names = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
        for source, target in (("namespace", "namespace"), ("pod_name", "pod"))
    ]
    own = [{re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", k): v for k, v in r.items()} for r in endpoint["relabelings"]]
    return {
        "job_name": "trainers",
        "metrics_path": endpoint["path"],
        "kubernetes_sd_configs": [
            {"role": "pod", "kubeconfig_file": str(kubeconfig), "namespaces": {"names": [namespace]}}
        ],
        "relabel_configs": [*selects, *names, *own],
    }


@pytest.mark.cluster
@pytest.mark.usefixtures("helm", "fake_nodes")
def test_every_rank_of_every_pod_is_scraped_whatever_its_port(
    kubernetes_cluster: KubernetesCluster, namespace: str, prometheus_binaries: Path, tmp_path: Path
) -> None:
    install_crd(kubernetes_cluster)
    on_server = OnServer(kubernetes_cluster, namespace)
    monitors = render({"trainers": {"podMonitor": {"enabled": True}}})
    monitor = next(item for item in monitors if item["kind"] == "PodMonitor")
    scrape = scrape_config(monitor, kubeconfig=kubernetes_cluster.kubeconfig, namespace=namespace)
    server = PrometheusServer(prometheus_binaries / "prometheus", tmp_path, [scrape])
    try:
        on_server.operate()
        ranks = {"nodes": NODES, "processesPerNode": RANKS_PER_NODE, "metricsPort": PORT}
        on_server.create(rapjob(trainer=ranks))
        on_server.wait_phase("Running")
        server.process.start()
        ports = [PORT + rank for rank in range(RANKS_PER_NODE)]
        expected = {
            (f"http://{pod['status']['podIP']}:{port}/metrics", f"{pod['metadata']['name']}:{port}", "clicks")
            for pod in on_server.pods()
            for port in ports
        }

        def found() -> set[tuple[str, str, str]]:
            return {(target["url"], target["instance"], target["rapjob"]) for target in server.targets()}

        wait_until(lambda: found() == expected, limit_s=60, what=f"the targets {expected}")
        assert {target["namespace"] for target in server.targets()} == {namespace}
        assert {target["pod"] for target in server.targets()} == {pod["metadata"]["name"] for pod in on_server.pods()}
    finally:
        server.process.stop()
        on_server.close()
