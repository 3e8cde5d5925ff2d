"""Ranks of one host hear the same of each other, in rank order, and notice at once that one is gone."""

from __future__ import annotations

import random
import secrets
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rap_trainer.step.host_exchange import HostExchange
from rap_trainer.world import PeerLost

PACKET = struct.Struct("=3q")


def meet(size: int, *, timeout_s: float = 30.0) -> list[HostExchange]:
    address = f"test-{secrets.token_hex(8)}"

    def make(rank: int) -> HostExchange:
        return HostExchange(address, rank=rank, size=size, num_bytes=PACKET.size, timeout_s=timeout_s)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(make, range(size)))


@pytest.mark.parametrize("size", [2, 5])
def test_every_rank_hears_the_same_in_rank_order_round_by_round(size: int) -> None:
    exchanges, rounds = meet(size), 100

    def run(rank: int) -> list[bytes]:
        delays = random.Random(rank)
        heard = []
        for number in range(rounds):
            if delays.random() < 0.1:
                time.sleep(delays.random() * 1e-3)
            heard.append(exchanges[rank](PACKET.pack(rank, number, -(2**62) + number)))
        return heard

    with ThreadPoolExecutor(size) as pool:
        heard = list(pool.map(run, range(size)))
    wanted = [
        b"".join(PACKET.pack(rank, number, -(2**62) + number) for rank in range(size)) for number in range(rounds)
    ]
    assert all(each == wanted for each in heard)
    for exchange in exchanges:
        exchange.close()


def test_a_line_of_which_only_a_part_has_arrived_is_waited_for() -> None:
    first, second = meet(2)
    said = [PACKET.pack(0, 0, 0), PACKET.pack(1, 2, 3)]
    begin = second._line_bytes
    second._turns[1][begin : begin + 4] = (1).to_bytes(4, sys.byteorder)  # the round of what comes, alone
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(first, said[0])
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.05)
        assert second(said[1]) == waits.result(timeout=30) == b"".join(said)
    first.close()
    second.close()


@pytest.mark.parametrize("torn", [0, 1])
def test_a_rank_that_dies_while_it_writes_is_noticed(torn: int) -> None:
    exchanges = meet(2)
    begin = torn * exchanges[torn]._line_bytes
    exchanges[torn]._turns[1][begin : begin + 4] = (1).to_bytes(4, sys.byteorder)
    exchanges[torn].close()
    with pytest.raises(PeerLost, match=f"no longer hears rank {torn}: Connection closed"):
        exchanges[1 - torn](PACKET.pack(1, 2, 3))
    exchanges[1 - torn].close()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_is_gone_is_noticed_by_the_others(gone: int) -> None:
    exchanges = meet(3)
    exchanges[gone].close()

    def run(rank: int) -> str:
        with pytest.raises(PeerLost) as caught:
            exchanges[rank](PACKET.pack(rank, 0, 0))
        exchanges[rank].close()  # as its process would end
        return str(caught.value)

    left = [rank for rank in range(3) if rank != gone]
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(run, left))
    assert f"no longer hears rank {gone}" in told[0]


@pytest.mark.parametrize("gone", [0, 1])
def test_what_a_rank_said_before_it_ended_is_heard(gone: int) -> None:
    exchanges = meet(3)
    said = [PACKET.pack(rank, 0, 0) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        early = pool.submit(exchanges[gone], said[gone])
        late = [rank for rank in range(3) if rank != gone]
        first = pool.submit(exchanges[late[0]], said[late[0]])
        last = exchanges[late[1]](said[late[1]])
        assert early.result(timeout=30) == first.result(timeout=30) == last == b"".join(said)
    exchanges[gone].close()
    with pytest.raises(PeerLost):
        exchanges[late[0]](said[late[0]])
    for exchange in exchanges:
        exchange.close()


def test_a_rank_that_is_silent_is_lost_after_a_time() -> None:
    exchanges = meet(2, timeout_s=0.2)
    with pytest.raises(PeerLost, match="no longer hears rank 1: silent for 0 s"):
        exchanges[0](PACKET.pack(0, 0, 0))
    for exchange in exchanges:
        exchange.close()
