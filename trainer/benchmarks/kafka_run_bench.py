"""`rap run` on a topic for long: capacity, freshness at a share of it, and memory. Prints JSON lines.

`PYTHONPATH=operator:trainer:tests python trainer/benchmarks/kafka_run_bench.py [--seconds 300] [--share 0.8]`. Starts a
broker; first produces and trains a backlog, which gives the capacity of this machine in rows/s: what the trainer reaches,
or what would keep all cores busy producing, storing and training if that is less (by the load at half the trainer's
rate), then as many seconds of events that are produced at that share of it. The p99 is event time to optimizer step, per report of one second; the share of all rows
that were trained within the goal is counted by the trainer's own histogram. An event's time is that of the producer's schedule, so a producer that is late counts. Memory is the resident bytes of the rank and its reader: its
slope per 20 minutes beside the spread of the samples.
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
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rap_contract import metrics
from rap_trainer.demo import document
from servers.kafka_cluster import THROUGHPUT_FLAGS, KafkaCluster
from servers.processes import free_port

COMMAND = [sys.executable, "-m", "rap_trainer.cli"]
PARTITIONS = 2
MESSAGES_PER_S = 50  # small enough messages: a row waits for the last one of its message
WARM_UP_SHARE = 0.25
FIFTHS = 5
PROBE_S = 40.0
GOAL_S = 2.0  # from event to optimizer step, for 99 of 100 rows; a bound of the histogram
IDLE, GUEST = 3, 8  # of psutil's times: idle and iowait follow each other, guests' are counted as the user's


class Sample(NamedTuple):
    """The trainer, its rank and its reader."""

    time_s: float  # since the epoch, as that of a report
    resident_bytes: int
    machine_cpu_s: float  # of everything that runs
    rows: int = 0
    """Trained with a known event time."""
    rows_in_time: int = 0
    """Of those, within GOAL_S."""


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
            capacity, found = _capacity(Path(folder) / "backlog", cluster, options.backlog_rows)
            print(json.dumps({"bench": "kafka_run", "capacity_rows_per_s": round(capacity), **found}), flush=True)
            rate = int(options.share * capacity)
            print(json.dumps(_steady(Path(folder) / "steady", cluster, rate, options)), flush=True)
        finally:
            cluster.stop()


def _capacity(folder: Path, cluster: KafkaCluster, rows: int) -> tuple[float, dict[str, float]]:
    """Rows/s, and what it comes from: the trainer's rate on a backlog, and what keeps all cores busy at a lower rate."""
    topic = cluster.create_topic("backlog", num_partitions=PARTITIONS)
    subprocess.run(_produce(cluster, topic, rows, "--rows-per-message", "200"), check=True, stdout=subprocess.DEVNULL)
    reports = _run(folder / "backlog", cluster, topic, rows * 3 // 4)[0]
    warm = reports[len(reports) // 4 :]
    trainer = (warm[-1]["rows"] - warm[0]["rows"]) / (warm[-1]["time_s"] - warm[0]["time_s"])
    rate = trainer / 2
    samples = _train_beside(folder / "half", cluster, int(rate), PROBE_S)[1]
    first, last = samples[len(samples) // 2], samples[-2]
    busy = (last.machine_cpu_s - first.machine_cpu_s) / (last.time_s - first.time_s)
    cores = rate * len(os.sched_getaffinity(0)) / busy
    return min(trainer, cores), {"trainer_rows_per_s": round(trainer), "cores_rows_per_s": round(cores)}


def _train_beside(
    folder: Path, cluster: KafkaCluster, rate: int, seconds: float
) -> tuple[list[Mapping[str, Any]], list[Sample]]:
    """Events of so many seconds are produced at a rate while they are trained; reports and samples."""
    topic = cluster.create_topic(folder.name, num_partitions=PARTITIONS)
    rows = int(rate * seconds)
    producers: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        command = _produce(cluster, topic, rows, *_at_rate(rate))
        producers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    try:
        return _run(folder, cluster, topic, int(rows * 0.95), started=begin)
    finally:
        for producer in producers:
            producer.terminate()
            producer.wait(timeout=60)


def _at_rate(rate: int) -> Sequence[str]:
    return ["--rate", str(rate), "--rows-per-message", str(max(1, rate // MESSAGES_PER_S))]


def _steady(folder: Path, cluster: KafkaCluster, rate: int, options: argparse.Namespace) -> dict[str, Any]:
    reports, samples = _train_beside(folder, cluster, rate, options.seconds)
    warm = reports[int(len(reports) * WARM_UP_SHARE) :]
    p99 = sorted(p["freshness_p99_s"] for p in warm if p.get("freshness_p99_s") is not None)
    memory = samples[int(len(samples) * WARM_UP_SHARE) :]
    sizes = [float(sample.resident_bytes) for sample in memory]
    slope, _ = statistics.linear_regression([sample.time_s for sample in memory], sizes)
    level = statistics.fmean(sizes)
    return {
        "bench": "kafka_run",
        "share": options.share,
        "rate_rows_per_s": rate,
        "seconds": options.seconds,
        "reports": len(p99),
        "freshness_p99_s_median": p99[len(p99) // 2] if p99 else None,
        "freshness_p99_s_worst_of_20": p99[int(len(p99) * 0.95)] if p99 else None,
        "within_2_s_ratio": round(
            (memory[-1].rows_in_time - memory[0].rows_in_time) / max(memory[-1].rows - memory[0].rows, 1), 5
        ),
        "lag_records_at_end": warm[-1].get("lag_records") if warm else None,
        "memory_mib": round(level / 2**20, 1),
        "memory_growth_per_20_min_ratio": round(slope * 1200 / level, 5),
        "memory_spread_ratio": round(statistics.stdev(sizes) / level, 5),
        "memory_mib_by_fifth": [
            round(median / 2**20, 1) for median in _medians([sample.resident_bytes for sample in samples])
        ],
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
) -> tuple[list[Mapping[str, Any]], list[Sample]]:
    """Trains so many rows on one rank; its reports, and a sample a second from when it can train."""
    folder.mkdir(parents=True)
    job, port = folder / "job.yaml", free_port()
    text = document(folder, rows, servers=cluster.bootstrap_servers[0], topic=topic)
    job.write_text(text.replace("256", "512").replace("metricsPort: 0", f"metricsPort: {port}"))
    command = [*COMMAND, "run", str(job), "--nproc", "1", "--json"]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    samples: list[Sample] = []
    watch = threading.Thread(target=_sample, args=(trainer, port, samples), daemon=True)
    lines: list[dict[str, Any]] = []
    assert trainer.stdout is not None
    for line in trainer.stdout:
        if line.startswith("{"):
            lines.append(json.loads(line))
            if len(lines) == 1:
                watch.start()
                started()
    if trainer.wait() != 0:
        raise SystemExit(f"the trainer ended with {trainer.returncode}: {lines[-1:]}")
    watch.join()
    return [line for line in lines if line.get("type") == "progress"], samples


def _sample(trainer: subprocess.Popen[str], port: int, samples: list[Sample]) -> None:
    process = psutil.Process(trainer.pid)
    while trainer.poll() is None:
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            below = process.children(recursive=True)
            resident = sum(child.memory_info().rss for child in below)
            with suppress(OSError):  # it has not begun to serve, or no longer does
                samples.append(Sample(time.time(), resident, _machine_cpu_s(), *_freshness(port)))
        time.sleep(1.0)


def _freshness(port: int) -> tuple[int, int]:
    """Rows with a known event time, and those trained within GOAL_S, by the trainer's histogram."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        page = answer.read().decode()
    rows = rows_in_time = 0
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(f"{metrics.FRESHNESS_SECONDS.name}_count"):
            rows += int(float(value))
        elif name.startswith(f"{metrics.FRESHNESS_SECONDS.name}_bucket") and f'le="{GOAL_S}"' in name:
            rows_in_time += int(float(value))
    return rows, rows_in_time


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times[:IDLE]) + sum(times[IDLE + 2 : GUEST]))


if __name__ == "__main__":
    main()
