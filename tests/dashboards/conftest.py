"""One trainer, one operator and one Prometheus that scrapes both, for all tests of boards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from dashboards.prometheus_server import PrometheusServer
    from servers.kubernetes_cluster import KubernetesCluster


@pytest.fixture(scope="module")
def scraped(
    kubernetes_cluster: KubernetesCluster, prometheus_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    """Prometheus once it has seen a run with bad records and checkpoints, and an operator whose job has failed."""
    from dashboards.prometheus_server import PrometheusServer, Target
    from dashboards.running_system import NAMESPACE, RAPJOB, has_shown_itself, operate, trainer
    from node_agent.agent import NodeAgent
    from node_agent.nodes import NodeSpec
    from operator_world.on_server import OnServer, install_crd
    from servers.processes import free_port
    from servers.waiting import wait_until

    folder = tmp_path_factory.mktemp("boards")
    install_crd(kubernetes_cluster)
    on_server = OnServer(kubernetes_cluster, kubernetes_cluster.create_namespace())
    agent = NodeAgent(kubernetes_cluster.api, folder / "nodes", nodes=[NodeSpec(name="boards-0", gpus=0)])
    operator_port = free_port()
    try:
        agent.start()
        operate(on_server, folder, operator_port)
        with trainer(folder) as port:
            of_job = {"namespace": NAMESPACE, "rapjob": RAPJOB, "pod": f"{RAPJOB}-0"}
            of_operator = {"namespace": "rap-system", "pod": "rap-operator-0"}
            targets = [Target(port=port + rank, labels=of_job) for rank in (0, 1)]
            targets.append(Target(port=operator_port, labels=of_operator))
            server = PrometheusServer(
                prometheus_binaries / "prometheus", folder, [target.scrape() for target in targets]
            )
            server.process.start()
            try:
                wait_until(lambda: has_shown_itself(server), limit_s=200, what="a run with something to see", every_s=1)
                yield server
            finally:
                server.process.stop()
    finally:
        on_server.close()
        agent.stop()
        kubernetes_cluster.delete_namespace(on_server.namespace)
