"""pytest fixtures for nodes: loaded beside servers.plugin in tests/conftest.py."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported where used, as in servers.plugin
    from node_agent.agent import NodeAgent
    from node_agent.fake_nodes import FakeNodes
    from node_agent.images import Image
    from servers.kubernetes_cluster import KubernetesCluster


RunNodes = Callable[..., "NodeAgent"]


@pytest.fixture
def run_nodes(kubernetes_cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunNodes]:
    """Call it with `num_nodes`, and `gpus` each, to get a running NodeAgent; it is stopped after the test.

    `host_ports` are servers of this machine, such as Kafka's, that pods shall find on their own loopback.
    """
    from node_agent.agent import NodeAgent
    from node_agent.nodes import NodeSpec

    agents: list[NodeAgent] = []

    def run(
        num_nodes: int = 2,
        *,
        gpus: int = 4,
        images: Mapping[str, Image] | None = None,
        host_ports: Sequence[int] = (),
    ) -> NodeAgent:
        run_id = uuid.uuid4().hex[:6]
        nodes = [NodeSpec(name=f"node-{run_id}-{index}", gpus=gpus) for index in range(num_nodes)]
        folder = tmp_path_factory.mktemp("nodes")
        agent = NodeAgent(kubernetes_cluster.api, folder, nodes=nodes, images=images, host_ports=host_ports)
        agents.append(agent)
        agent.start()
        return agent

    yield run
    for agent in agents:
        agent.stop()


@pytest.fixture
def node_agent(run_nodes: RunNodes) -> NodeAgent:
    """Two nodes of four GPUs each whose pods run as local processes."""
    return run_nodes()


@pytest.fixture
def fake_nodes(kubernetes_cluster: KubernetesCluster) -> Iterator[FakeNodes]:
    """Four nodes that take thousands of pods each and run none of them."""
    from node_agent.fake_nodes import FakeNodes
    from node_agent.nodes import NodeSpec

    run_id = uuid.uuid4().hex[:6]
    names = [f"fake-{run_id}-{index}" for index in range(4)]
    specs = [NodeSpec(name=name, gpus=40_000, cpus=100_000, memory="1000Ti", pods=10_000) for name in names]
    nodes = FakeNodes(kubernetes_cluster.api, specs)
    nodes.start()
    yield nodes
    nodes.stop()
