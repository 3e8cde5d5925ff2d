"""`rap run` on a topic for long: capacity, freshness at a share of it, and memory. Prints JSON lines.

`PYTHONPATH=operator:trainer:tests python trainer/benchmarks/kafka_run_bench.py [--seconds 300] [--share 0.8]`. Starts a
broker; first trains a backlog, while as many events are produced beside it, which gives the capacity of this machine in
rows/s, then as many seconds of events that are produced at that share of it. The p99 is event time to optimizer step, per report of one second. Memory is the
resident bytes of the rank and its reader: its slope per 20 minutes beside the spread of the samples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rap_trainer.demo import document
from servers.kafka_cluster import THROUGHPUT_FLAGS, KafkaCluster

COMMAND = [sys.executable, "-m", "rap_trainer.cli"]
PARTITIONS = 2
MESSAGES_PER_S = 50  # small enough messages: a row waits for the last one of its message
WARM_UP_SHARE = 0.25
FIFTHS = 5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Capacity, then freshness and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--backlog-rows", type=int, default=400_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = KafkaCluster(Path(folder) / "kafka", num_brokers=1, java_flags=THROUGHPUT_FLAGS)
        try:
            cluster.start()
            alone = _capacity(Path(folder) / "alone", cluster, options.backlog_rows)
            capacity = _capacity(Path(folder) / "beside", cluster, options.backlog_rows, beside=int(alone))
            found = {"capacity_rows_per_s": round(capacity), "without_a_producer": round(alone)}
            print(json.dumps({"bench": "kafka_run", **found}), flush=True)
            rate = int(options.share * capacity)
            print(json.dumps(_steady(Path(folder) / "steady", cluster, rate, options)), flush=True)
        finally:
            cluster.stop()


def _capacity(folder: Path, cluster: KafkaCluster, rows: int, *, beside: int = 0) -> float:
    """Rows/s while a backlog is trained; `beside`: events of so many rows/s are produced meanwhile, into another topic."""
    topic, other = (cluster.create_topic(name, num_partitions=PARTITIONS) for name in ("backlog", "other"))
    subprocess.run(_produce(cluster, topic, rows, "--rows-per-message", "1000"), check=True, stdout=subprocess.DEVNULL)
    producers: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        if beside:
            command = _produce(cluster, other, 1000 * beside, *_at_rate(beside))
            producers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    try:
        reports = _run(folder, cluster, topic, rows * 3 // 4, started=begin)[0]
    finally:
        for producer in producers:
            producer.terminate()
            producer.wait(timeout=60)
    rates = [p["rows_per_s"] for p in reports if p["rows_per_s"] > 0]
    return float(statistics.median(rates[len(rates) // 4 :]))


def _at_rate(rate: int) -> Sequence[str]:
    return ["--rate", str(rate), "--rows-per-message", str(max(1, rate // MESSAGES_PER_S))]


def _steady(folder: Path, cluster: KafkaCluster, rate: int, options: argparse.Namespace) -> dict[str, Any]:
    topic = cluster.create_topic("steady", num_partitions=PARTITIONS)
    rows = int(rate * options.seconds)
    producers: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        command = _produce(cluster, topic, rows, *_at_rate(rate))
        producers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    try:
        reports, samples = _run(folder, cluster, topic, int(rows * 0.95), started=begin)
    finally:
        for producer in producers:
            producer.terminate()
            producer.wait(timeout=60)
    warm = reports[int(len(reports) * WARM_UP_SHARE) :]
    p99 = sorted(p["freshness_p99_s"] for p in warm if p.get("freshness_p99_s") is not None)
    memory = samples[int(len(samples) * WARM_UP_SHARE) :]
    slope, _ = statistics.linear_regression([t for t, _ in memory], [float(size) for _, size in memory])
    level = statistics.fmean(size for _, size in memory)
    return {
        "bench": "kafka_run",
        "share": options.share,
        "rate_rows_per_s": rate,
        "seconds": options.seconds,
        "reports": len(p99),
        "freshness_p99_s_median": p99[len(p99) // 2] if p99 else None,
        "freshness_p99_s_worst_of_20": p99[int(len(p99) * 0.95)] if p99 else None,
        "lag_records_at_end": warm[-1].get("lag_records") if warm else None,
        "memory_mib": round(level / 2**20, 1),
        "memory_growth_per_20_min_ratio": round(slope * 1200 / level, 5),
        "memory_spread_ratio": round(statistics.stdev(size for _, size in memory) / level, 5),
        "memory_mib_by_fifth": [round(median / 2**20, 1) for median in _medians([size for _, size in samples])],
    }


def _medians(sizes: Sequence[int]) -> list[float]:
    """Of each fifth of the samples: what a slope is made of."""
    bounds = [len(sizes) * fifth // FIFTHS for fifth in range(FIFTHS + 1)]
    return [statistics.median(sizes[begin:end]) for begin, end in itertools.pairwise(bounds)]


def _produce(cluster: KafkaCluster, topic: str, rows: int, *more: str) -> Sequence[str]:
    place = ["--kafka", cluster.bootstrap_servers[0], "--topic", topic, "--mean-length", "2"]
    return [*COMMAND, "produce", *place, "--rows", str(rows), *more]


def _run(
    folder: Path, cluster: KafkaCluster, topic: str, rows: int, *, started: Callable[[], None] = lambda: None
) -> tuple[list[Mapping[str, Any]], list[tuple[float, int]]]:
    """Trains so many rows on one rank; its reports, and from when it can train seconds and resident bytes once a second."""
    folder.mkdir(parents=True)
    job = folder / "job.yaml"
    job.write_text(document(folder, rows, servers=cluster.bootstrap_servers[0], topic=topic).replace("256", "512"))
    command = [*COMMAND, "run", str(job), "--nproc", "1", "--json"]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    samples: list[tuple[float, int]] = []
    watch = threading.Thread(target=_sample, args=(trainer, samples), daemon=True)
    lines: list[dict[str, Any]] = []
    assert trainer.stdout is not None
    for text in trainer.stdout:
        if text.startswith("{"):
            lines.append(json.loads(text))
            if len(lines) == 1:
                watch.start()
                started()
    if trainer.wait() != 0:
        raise SystemExit(f"the trainer ended with {trainer.returncode}: {lines[-1:]}")
    watch.join()
    return [line for line in lines if line.get("type") == "progress"], samples


def _sample(trainer: subprocess.Popen[str], samples: list[tuple[float, int]]) -> None:
    began_s = time.monotonic()
    while trainer.poll() is None:
        samples.append((time.monotonic() - began_s, _resident_bytes(trainer.pid)))
        time.sleep(1.0)


def _resident_bytes(ancestor: int) -> int:
    """Of all processes below `ancestor`."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                sizes[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * PAGE_BYTES
            except OSError:
                continue  # it ended meanwhile
    below, found = {ancestor}, 0
    while len(below) > found:
        found = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return sum(sizes.get(pid, 0) for pid in below - {ancestor})


if __name__ == "__main__":
    main()
