"""Fixtures: a namespace on a real API server, with an operator under the chart's own account; ranks as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from train.forge import Forge

if TYPE_CHECKING:
    from operator_world.on_server import OnServer
    from servers.kubernetes_cluster import KubernetesCluster


def pytest_configure(config: pytest.Config) -> None:
    """torch 2.11 warns its caller that ShardedTensor goes; TorchRec 1.6 knows nothing else yet."""
    config.addinivalue_line("filterwarnings", "ignore:Please use DTensor:FutureWarning")


@pytest.fixture(scope="session")
def crd(kubernetes_cluster: KubernetesCluster) -> None:
    """The RAPJob kind is served."""
    from operator_world.on_server import install_crd

    install_crd(kubernetes_cluster)


@pytest.fixture
def on_server(kubernetes_cluster: KubernetesCluster, namespace: str, crd: None, helm: Path) -> Iterator[OnServer]:
    """A namespace with RAPJobs."""
    from chart.account import chart_account
    from operator_world.on_server import OnServer

    del crd, helm
    made = OnServer(kubernetes_cluster, namespace, kubeconfig=chart_account(kubernetes_cluster, namespace))
    yield made
    made.close()


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Starts `rap run` with several ranks, without importing TorchRec each time."""
    made = Forge(tmp_path_factory.mktemp("forge"))
    yield made
    made.close()
