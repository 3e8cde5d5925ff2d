"""A cluster of the chart's own: it installs and removes the CRD that other tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from servers.kubernetes_cluster import KubernetesCluster


@pytest.fixture(scope="module")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A control plane that also checks who may set owner references, as OpenShift does."""
    from chart.strict_cluster import StrictCluster

    cluster = StrictCluster(tmp_path_factory.mktemp("chart-cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder / "etcd", ignore_errors=True)
