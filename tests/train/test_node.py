"""A machine of several gives its ranks the numbers and the meeting place of the whole group."""

from __future__ import annotations

import socket

import pytest
from rap_contract.pod import ENV_NODE_INDEX, ENV_NODES, ENV_RENDEZVOUS
from rap_trainer import node
from rap_trainer.node import Node


def test_ranks_are_numbered_over_all_nodes() -> None:
    told = {ENV_NODES: "3", ENV_NODE_INDEX: "2", ENV_RENDEZVOUS: "clicks-1-0.clicks:29400"}
    environment = Node.given(told, ranks_per_node=4).environment(1)
    assert environment == {
        "RANK": "9",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "clicks-1-0.clicks",
        "MASTER_PORT": "29400",
    }


def test_a_machine_that_is_told_nothing_is_the_only_one() -> None:
    environment = Node.given({}, ranks_per_node=2).environment(1)
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")


def test_ranks_of_one_machine_meet_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Node.given({}, ranks_per_node=2).port in node.PORTS
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(node, "PORTS", range(port, port + 1))
        with pytest.raises(OSError, match=f"no free port from {port} to {port} for the ranks to meet at"):
            Node.given({}, ranks_per_node=2)


def test_a_single_pod_meets_itself_without_a_name_service() -> None:
    told = {ENV_NODES: "1", ENV_NODE_INDEX: "0", ENV_RENDEZVOUS: "clicks-1-0.clicks:29400"}
    assert Node.given(told, ranks_per_node=2).address == "127.0.0.1"


@pytest.mark.parametrize("told", [{}, {ENV_RENDEZVOUS: "h:1", ENV_NODE_INDEX: "3"}], ids=["no place", "index"])
def test_half_a_description_is_refused(told: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="RAP_NODES=3"):
        Node.given({ENV_NODES: "3", **told}, ranks_per_node=1)
