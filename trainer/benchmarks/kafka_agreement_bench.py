"""What it costs that ranks of one host agree before each step. Prints JSON lines; needs no broker.

`python trainer/benchmarks/kafka_agreement_bench.py [--ranks 2] [--rounds 5000]`. Each rank offers a full batch and takes
the decision, as the loop does before each step; the time is that of rank 0 from its offer to its decision. More ranks
than free cores measure the scheduler.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time

import torch
from rap_trainer.step.agreement import Exchange, Message, decide
from rap_trainer.stream.source import Offer
from rap_trainer.world import join_world

BATCH_ROWS = 4096
WARM_UP_ROUNDS = 200


def main() -> None:
    """Starts the ranks and waits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5000)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fresh = multiprocessing.get_context("spawn")
    ranks = [fresh.Process(target=_rank, args=(i, options.ranks, options.rounds, port)) for i in range(options.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


def _rank(rank: int, num_ranks: int, rounds: int, port: int) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    exchange = Exchange(join_world(use_gpu=False))

    def shares(offers: list[Offer]) -> tuple[int, ...]:
        return tuple(offer.rows for offer in offers)

    seconds = []
    for _ in range(WARM_UP_ROUNDS + rounds):
        began_s = time.perf_counter()
        messages = exchange(Message(rows=BATCH_ROWS, ended=False))
        decide(messages, room=True, full=shares, partial=shares)  # type: ignore[arg-type]  # a list is a sequence
        seconds.append(time.perf_counter() - began_s)
    if rank == 0:
        quantiles = statistics.quantiles(seconds[WARM_UP_ROUNDS:], n=100)
        result = {"ranks": num_ranks, "rounds": rounds, "median_ms": round(1e3 * quantiles[49], 4)}
        print(json.dumps({**result, "p99_ms": round(1e3 * quantiles[98], 4)}), flush=True)


if __name__ == "__main__":
    main()
