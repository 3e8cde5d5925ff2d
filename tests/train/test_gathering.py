"""Ranks of one host or several hear the same of each other in rank order, by the shortest way there is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rap_trainer.step import gathering as under_test
from rap_trainer.step.gathering import Gather, gathering
from rap_trainer.step.network_exchange import Door, connected, opened
from rap_trainer.world import PeerLost, World

NUM_BYTES = 11
Meet = Callable[[int, int], list[Gather]]


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Meet:
    """Makes ranks in threads of this process; the control group is stood in for by a barrier."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")

    def met(size: int, local_size: int) -> list[Gather]:
        barrier, said = threading.Barrier(size), [None] * size

        def all_gather_object(target: list[Any], mine: Any, group: int) -> None:
            said[group] = mine
            barrier.wait(30)
            target[:] = said
            barrier.wait(30)

        monkeypatch.setattr(dist, "all_gather_object", all_gather_object)
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(lambda rank: gathering(world(rank, size, local_size), NUM_BYTES), range(size)))

    return met


def world(rank: int, size: int, local_size: int) -> World:
    group: Any = rank  # so that the stand-in knows who asks
    return World(
        rank=rank,
        size=size,
        local_rank=rank % local_size,
        local_size=local_size,
        device=torch.device("cpu"),
        data_group=group,
        control_group=group,
        checkpoint_group=group,
    )


def packet(rank: int, number: int) -> bytes:
    return f"{rank:3d}:{number:7d}".encode()


@pytest.mark.parametrize(("size", "local_size"), [(3, 3), (4, 2), (3, 1), (6, 2)])
def test_every_rank_hears_the_same_in_rank_order_round_by_round(meet: Meet, size: int, local_size: int) -> None:
    ways, rounds = meet(size, local_size), 40

    def run(rank: int) -> list[bytes]:
        return [ways[rank](packet(rank, number)) for number in range(rounds)]

    with ThreadPoolExecutor(size) as pool:
        heard = list(pool.map(run, range(size)))
    wanted = [b"".join(packet(rank, number) for rank in range(size)) for number in range(rounds)]
    assert all(each == wanted for each in heard)
    for way in ways:
        way.close()


def test_hosts_that_do_not_reach_each_other_agree_over_the_control_group_and_the_log_says_why(
    meet: Meet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(door: socket.socket, doors: Sequence[Door], host: int) -> dict[int, socket.socket]:
        if host == 0:
            raise ConnectionRefusedError("no way")
        monkeypatch.setattr("rap_trainer.step.network_exchange.MEETING_S", 0.1)
        door.settimeout(0.1)
        return connected(door, doors, host)

    monkeypatch.setattr(under_test, "connected", refused)
    ways = meet(4, 2)
    assert [type(way).__name__ for way in ways] == ["_Gloo"] * 4
    assert "hosts agree over gloo" in caplog.text
    assert "rank 0 at 127.0.0.1: no way" in caplog.text


def test_a_first_rank_without_an_address_is_no_reason_to_end(
    meet: Meet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert [type(way).__name__ for way in meet(2, 1)] == ["_Gloo"] * 2
    assert "rank 0 has no address" in caplog.text


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_rank_that_is_gone_is_noticed_on_every_host(meet: Meet, gone: int) -> None:
    ways = meet(4, 2)
    ways[gone].close()

    def run(rank: int) -> str:
        with pytest.raises(PeerLost) as caught:
            ways[rank](packet(rank, 0))
        ways[rank].close()  # as its process would end
        return str(caught.value)

    left = [rank for rank in range(4) if rank != gone]
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(run, left))
    assert all("no longer hears" in each for each in told)


def test_a_host_that_is_silent_is_lost_after_a_time(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAP_PEER_TIMEOUT_S", "0.2")
    ways = meet(2, 1)
    with pytest.raises(PeerLost, match="host 0 no longer hears host 1: silent for 0 s"):
        ways[0](packet(0, 0))
    for way in ways:
        way.close()


def test_a_stranger_at_the_door_is_turned_away() -> None:
    places = [opened("127.0.0.1"), opened("127.0.0.1")]
    doors = [Door.of(place, f"word-{host}") for host, place in enumerate(places)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(connected, places[0], doors, 0)
        with socket.create_connection(doors[0][:2]) as stranger:
            stranger.sendall((1).to_bytes(4, "big") + b"guess!")
            stranger.settimeout(30)
            assert stranger.recv(1) == b"", "closed"
        second = pool.submit(connected, places[1], doors, 1)
        (mine,), (theirs,) = first.result(30).values(), second.result(30).values()
    assert mine.getpeername() == theirs.getsockname()
    for each in (mine, theirs, *places):
        each.close()
