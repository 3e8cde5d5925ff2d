"""pytest fixtures for the real servers: loaded by `pytest_plugins = ["servers.plugin"]` in tests/conftest.py.

Sessions share one control plane and one broker each (per xdist worker); tests get a namespace and
topics of their own. Servers that the cache lacks are built before the first test starts, outside
of any test's time limit: no test is skipped for want of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from servers import build

if TYPE_CHECKING:  # imported where used: a checkout without the kafka or kubernetes extra still runs its tests
    from servers.kafka_cluster import KafkaCluster
    from servers.kubernetes_cluster import KubernetesCluster

# Servers of this session by the name of their fixture.
STARTED: pytest.StashKey[dict[str, KubernetesCluster | KafkaCluster]] = pytest.StashKey()
NEEDS = {
    "kubernetes_cluster": "kubernetes",
    "kafka_broker": "kafka",
    "kafka_cluster": "kafka",
    "helm": "helm",
    "prometheus_binaries": "prometheus",
    "monitoring_kinds": "monitoring-kinds",
}


def pytest_configure(config: pytest.Config) -> None:
    """Let kafka-python work where warnings are errors: it reads its schemas the old way, and does not
    close the socket of a connection that was refused, as connections to stopped brokers are."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
    config.addinivalue_line("filterwarnings", r"ignore:unclosed <socket\.socket .*laddr=\('0\.0\.0\.0':ResourceWarning")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the selected tests need, while no test's clock is running."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    for what in sorted({NEEDS[name] for name in used & NEEDS.keys()}):
        with capture.global_and_fixture_disabled():
            build.RECIPES[what]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give every test servers that run, whatever the test before did to them and left so."""
    for name, servers in item.session.stash.get(STARTED, {}).items():
        if name in getattr(item, "fixturenames", ()):
            servers.recover()


@pytest.fixture(scope="session")
def kubernetes_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesCluster]:
    """A running control plane; see KubernetesCluster for what can be done to it."""
    from servers.kubernetes_cluster import KubernetesCluster

    cluster = KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))
    try:
        cluster.start()
        request.session.stash.setdefault(STARTED, {})["kubernetes_cluster"] = cluster
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder / "etcd", ignore_errors=True)


@pytest.fixture
def namespace(kubernetes_cluster: KubernetesCluster) -> Iterator[str]:
    """The name of a namespace of this test's own."""
    name = kubernetes_cluster.create_namespace()
    yield name
    kubernetes_cluster.delete_namespace(name)


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A running cluster of one broker."""
    yield from _running_kafka(request, tmp_path_factory.mktemp("kafka"), num_brokers=1)


@pytest.fixture(scope="session")
def kafka_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A running cluster of three brokers."""
    yield from _running_kafka(request, tmp_path_factory.mktemp("kafka3"), num_brokers=3)


@pytest.fixture(scope="session")
def helm() -> Path:
    """The helm 4 command."""
    return build.helm() / "helm"


@pytest.fixture(scope="session")
def prometheus_binaries() -> Path:
    """Folder with prometheus and promtool."""
    return build.prometheus()


@pytest.fixture(scope="session")
def monitoring_kinds() -> Path:
    """Folder with the Prometheus operator's CustomResourceDefinitions."""
    return build.monitoring_kinds()


def _running_kafka(request: pytest.FixtureRequest, folder: Path, *, num_brokers: int) -> Iterator[KafkaCluster]:
    from servers.kafka_cluster import KafkaCluster

    cluster = KafkaCluster(folder, num_brokers=num_brokers)
    try:
        cluster.start()
        request.session.stash.setdefault(STARTED, {})[str(request.fixturename)] = cluster
        yield cluster
    finally:
        cluster.stop()
        for data in folder.glob("kafka-?"):
            shutil.rmtree(data, ignore_errors=True)
