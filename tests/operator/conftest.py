"""Fixtures of the operator's tests: a cluster in memory, or a namespace on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chart.account import chart_account
from operator_world.on_server import OnServer, install_crd
from operator_world.world import World

if TYPE_CHECKING:
    from servers.kubernetes_cluster import KubernetesCluster


@pytest.fixture(scope="session")
def crd(kubernetes_cluster: KubernetesCluster) -> None:
    """The RAPJob kind is served."""
    install_crd(kubernetes_cluster)


@pytest.fixture
def on_server(kubernetes_cluster: KubernetesCluster, namespace: str, crd: None, helm: Path) -> Iterator[OnServer]:
    """A namespace with RAPJobs; operators started in it with `operate` may do what the chart grants them and no more."""
    del crd, helm
    made = OnServer(kubernetes_cluster, namespace, kubeconfig=chart_account(kubernetes_cluster, namespace))
    yield made
    made.close()


@pytest.fixture
def world() -> World:
    """A job of two nodes that runs, over a cluster in memory."""
    made = World()
    made.apply()
    assert made.status.phase == "Running"
    return made
