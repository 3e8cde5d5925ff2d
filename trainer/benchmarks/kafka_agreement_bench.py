"""What it costs the thread that trains that ranks agree before each step. Prints a JSON line; needs no broker.

`python trainer/benchmarks/kafka_agreement_bench.py [--ranks 2] [--hosts 1] [--rounds 5000] [--gap-ms 1]`. Each rank
works on memory of its own, beyond its cache, until the instant at which the step of all ends; then it offers a full batch and takes
the decision, as the loop does before each step. `median_ms` and `p99_ms` are of all ranks, from offer to decision;
`step_ms` is what the step grew by: from the common instant until the last rank has decided, in the median. A gap of 0:
agreements back to back. More ranks than free cores measure the scheduler: `late_ratio` is the share of offers that came
more than 20 us after the instant. With `--hosts` ranks count as those of so many hosts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rap_trainer.step.agreement import Exchange, Message, decide
from rap_trainer.world import join_world

BATCH_ROWS = 4096
WARM_UP_ROUNDS = 200
WORK_BYTES = 4 << 20  # read between two agreements; L2 of the machines used has 1 to 2 MB
LATE_S = 20e-6


@dataclass(frozen=True)
class Options:
    """See the module."""

    ranks: int
    hosts: int
    rounds: int
    gap_s: float
    port: int


def main() -> None:
    """Starts the ranks and gathers what they measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--gap-ms", type=float, default=1.0)
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = Options(given.ranks, given.hosts, given.rounds, given.gap_ms / 1e3, port)
    fresh = multiprocessing.get_context("spawn")
    results = fresh.SimpleQueue()
    ranks = [fresh.Process(target=_rank, args=(rank, options, results)) for rank in range(options.ranks)]
    for rank in ranks:
        rank.start()
    times = np.stack([results.get() for _ in ranks])
    for rank in ranks:
        rank.join()
    own_s = times[:, :, 1] - times[:, :, 0]
    print(
        json.dumps(
            {
                "ranks": options.ranks,
                "hosts": options.hosts,
                "gap_ms": given.gap_ms,
                "rounds": options.rounds,
                "median_ms": _ms(np.median(own_s)),
                "p99_ms": _ms(np.quantile(own_s, 0.99)),
                "step_ms": _ms(np.median(times[:, :, 1].max(0))) if given.gap_ms else None,
                "late_ratio": round(float((times[:, :, 0] > LATE_S).mean()), 4) if given.gap_ms else None,
            }
        ),
        flush=True,
    )


def _rank(rank: int, options: Options, results: Any) -> None:
    torch.set_num_threads(1)
    local_size = options.ranks // options.hosts
    place = {"RANK": rank, "LOCAL_RANK": rank % local_size, "WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": local_size}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    exchange = Exchange(join_world(use_gpu=False))
    memory = np.ones(WORK_BYTES, np.uint8)
    for _ in range(WARM_UP_ROUNDS):
        _agree(exchange, 0)
    began_s = _common_instant_s(exchange) + options.gap_s
    times = np.empty((options.rounds, 2))  # offer and decision of each round, since the instant
    for number in range(options.rounds):
        instant_s = began_s + number * options.gap_s
        if options.gap_s:
            _work(memory, instant_s)
        offered_s = time.monotonic()
        _agree(exchange, number)
        times[number] = offered_s - instant_s, time.monotonic() - instant_s
    results.put(times)


def _common_instant_s(exchange: Exchange) -> float:
    """What the first rank's clock shows, which is that of all."""
    return (
        float(exchange(Message(rows=0, ended=False, seen_rows=round(time.monotonic() * 1e6))).every.seen_rows[0]) / 1e6
    )


def _agree(exchange: Exchange, number: int) -> None:
    messages = exchange(Message(rows=BATCH_ROWS, ended=False, seen_rows=number * BATCH_ROWS))
    decide(messages, room=True, shares=_shares)


def _shares(ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None:
    """As a topic's ranks share rows, each its own."""
    shares = tuple(ready)
    return shares if min(shares) >= BATCH_ROWS or (flush and any(shares)) else None


def _work(memory: npt.NDArray[np.uint8], until_s: float) -> None:
    """Reads the memory piece by piece, and only looks at the clock at last."""
    piece, at = 64 << 10, 0
    while time.monotonic() < until_s - 50e-6:
        memory[at : at + piece].max()
        at = (at + piece) % WORK_BYTES
    while time.monotonic() < until_s:
        pass


def _ms(seconds: Any) -> float:
    return round(1e3 * float(seconds), 4)


if __name__ == "__main__":
    main()
