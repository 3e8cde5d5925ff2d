"""`rap run` on a live topic: the highest rate it sustains, and freshness and memory at a share of it. Prints JSON lines.

`PYTHONPATH=operator:trainer:tests python trainer/benchmarks/kafka_run_bench.py [--seconds 300] [--share 0.8]`: about 7 minutes
and `--seconds`; with `--capacity ROWS_PER_S` the search is left out. One broker and one trainer run all the time, `rap produce` runs for
each rate. A rate is sustained if during `--probe-seconds` the trainer takes 99 of 100 rows produced, so that its lag does not
grow; capacity is the highest rate found, within 5 % of one that is not sustained. Freshness is event time to optimizer step, over
ALL rows of the run by the trainer's own histogram, as PromQL's histogram_quantile would take it; an event's time is that of
the producer's schedule, so a producer that is late counts. `others_cores` is what processes that are none of these took:
more than a few hundredths make the figures those of a disturbed machine. Memory is the resident bytes of the rank and its
reader: its slope per 20 minutes beside the spread of the samples; a rank fills for a quarter of an hour (`--settle-seconds 900`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rap_contract import metrics
from rap_contract.pod import ExitCode
from rap_trainer.demo import document
from resident_memory import Resident, by_fifth, resident_below  # type: ignore[import-not-found]  # beside this file
from servers.kafka_cluster import THROUGHPUT_FLAGS, KafkaCluster
from servers.processes import free_port
from servers.waiting import wait_until

COMMAND = [sys.executable, "-m", "rap_trainer.cli"]
PARTITIONS = 2
MESSAGES_PER_S = 50  # small enough messages: a row waits for the last one of its message
BEGIN_ROWS_PER_S = 6_000  # half of what two cores take: the load there says where to search
NEAR = 1.05  # capacity is known within this factor
STEP = 1.1  # of the search until it has a rate on either side
SUSTAINED_RATIO = 0.99
WARM_UP_S = 10.0  # of a probe: the producer starts within 3
NO_LIMIT = 10**9  # rows
GOAL_S = 2.0  # from event to optimizer step, for 99 of 100 rows; a bound of the histogram
IDLE, GUEST = 3, 8  # of psutil's times: idle and iowait follow each other, guests' are counted as the user's


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One moment of a run."""

    time_s: float
    memory: Resident
    """Of the rank and its reader."""
    machine_cpu_s: float
    """Of everything that runs."""
    own_cpu_s: float
    """Of broker, producer, trainer, reader and this process."""
    ages: Mapping[float, int]
    """Rows trained with at most this age, by bound of the histogram; the last is infinite."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What was seen while events came at a rate."""

    rate: float
    reports: Sequence[Mapping[str, Any]]
    samples: Sequence[Sample]
    """Before the producer started, once a second while it ran, and one when all rows were trained."""

    @property
    def trained_per_s(self) -> float:
        warm = [report for report in self.reports if report["time_s"] - self.reports[0]["time_s"] >= WARM_UP_S]
        slope, _ = statistics.linear_regression([each["time_s"] for each in warm], [each["rows"] for each in warm])
        return slope

    @property
    def sustained(self) -> bool:
        return self.trained_per_s >= SUSTAINED_RATIO * self.rate

    def cores(self, *, own: bool = False) -> float:
        """Busy ones of the machine, or with these processes, in the second half."""
        first, last = self.samples[len(self.samples) // 2], self.samples[-2]
        spent_s = last.own_cpu_s - first.own_cpu_s if own else last.machine_cpu_s - first.machine_cpu_s
        return spent_s / (last.time_s - first.time_s)

    def summary(self) -> dict[str, Any]:
        """For a line of output."""
        lag = [report["lag_s"] for report in self.reports if report["lag_s"] is not None]
        busy, own = self.cores(), self.cores(own=True)
        return {
            "rate_rows_per_s": round(self.rate),
            "trained_rows_per_s": round(self.trained_per_s),
            "lag_s_median": round(statistics.median(lag), 3),
            "lag_s_at_end": round(lag[-1], 3),
            "busy_cores": round(busy, 3),
            "others_cores": round(busy - own, 3),
        }


class Trainer:
    """`rap run` with one rank on a topic that does not end."""

    def __init__(self, folder: Path, cluster: KafkaCluster) -> None:
        self._cluster, self._port = cluster, free_port()
        self._topic = cluster.create_topic("events", num_partitions=PARTITIONS)
        job = folder / "job.yaml"
        text = document(folder, NO_LIMIT, servers=cluster.bootstrap_servers[0], topic=self._topic)
        job.write_text(text.replace("256", "512").replace("metricsPort: 0", f"metricsPort: {self._port}"))
        command = [*COMMAND, "run", str(job), "--nproc", "1", "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reports: list[dict[str, Any]] = []
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()
        self._wait(lambda: bool(self._reports), limit_s=120, what="the first report")

    def hold(self, rate: float, seconds: float) -> Held:
        """Produces events at a rate for so long, and waits until all are trained."""
        before, samples = len(self._reports), [self._sample()]
        rows = int(rate * seconds)
        with _producer(self._cluster, self._topic, rows, int(rate)) as producer:
            while producer.poll() is None:
                samples.append(self._sample())
                time.sleep(1.0)
        during = self._reports[before:]
        begin = next(i for i, report in enumerate(during) if report["rows_per_s"] > 0)  # the producer has started
        target = samples[0].ages[float("inf")] + rows
        self._wait(lambda: self._sample().ages[float("inf")] >= target, limit_s=60 + seconds, what="all rows trained")
        return Held(rate=rate, reports=during[begin:], samples=[*samples, self._sample()])

    def close(self) -> None:
        """Asks it to end, after a checkpoint."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=60)
        self._follower.join()
        if code != ExitCode.TERMINATED:
            raise SystemExit(f"the trainer ended with {code}: {self._reports[-1:]}")

    def _wait(self, done: Any, *, limit_s: float, what: str) -> None:
        wait_until(lambda: done() or self._process.poll() is not None, limit_s=limit_s, what=what, every_s=0.5)
        if self._process.poll() is not None:
            raise SystemExit(f"the trainer ended with {self._process.returncode}: {self._reports[-1:]}")

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                report = json.loads(line)
                if report.get("type") == "progress":
                    self._reports.append(report)

    def _sample(self) -> Sample:
        own_s = 0.0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                times = process.cpu_times()
                own_s += times.user + times.system
        machine = psutil.cpu_times()
        return Sample(
            time_s=time.time(),
            memory=resident_below(self._process.pid),
            machine_cpu_s=float(sum(machine[:IDLE]) + sum(machine[IDLE + 2 : GUEST])),
            own_cpu_s=own_s,
            ages=_ages(self._port),
        )


def main() -> None:
    """Capacity, then freshness and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--probe-seconds", type=float, default=70.0)
    parser.add_argument("--capacity", type=float, help="rows/s; is searched by default")
    parser.add_argument("--settle-seconds", type=float, default=0.0, help="at the rate before it is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = KafkaCluster(Path(folder) / "kafka", num_brokers=1, java_flags=THROUGHPUT_FLAGS)
        try:
            cluster.start()
            trainer = Trainer(Path(folder), cluster)
            warm = trainer.hold(BEGIN_ROWS_PER_S, 2.5 * WARM_UP_S)
            capacity = options.capacity or _capacity(trainer, warm, options.probe_seconds)
            if options.settle_seconds:
                trainer.hold(options.share * capacity, options.settle_seconds)
            held = trainer.hold(options.share * capacity, options.seconds)
            line = {"bench": "kafka_run", "part": "steady", "share": options.share, "seconds": options.seconds}
            print(json.dumps({**line, **held.summary(), **_freshness(held), **_memory(held)}), flush=True)
            trainer.close()
        finally:
            cluster.stop()


def _capacity(trainer: Trainer, warm: Held, seconds: float) -> float:
    """The highest rate that was sustained; searched from where all cores would be busy."""
    rate, low, high = warm.rate * len(os.sched_getaffinity(0)) / warm.cores(), 0.0, float("inf")
    while high > NEAR * low:
        held = trainer.hold(rate, seconds)
        line = {"bench": "kafka_run", "part": "probe", "seconds": seconds, "sustained": held.sustained}
        print(json.dumps({**line, **held.summary()}), flush=True)
        low, high = (rate, high) if held.sustained else (low, rate)
        rate = low * STEP if high == float("inf") else high / STEP if not low else (low * high) ** 0.5
    print(json.dumps({"bench": "kafka_run", "part": "capacity", "rows_per_s": round(low)}), flush=True)
    return low


def _freshness(held: Held) -> dict[str, Any]:
    first, last = held.samples[0].ages, held.samples[-1].ages
    counts = {bound: number - first[bound] for bound, number in last.items()}
    rows = counts[float("inf")]
    return {
        "rows": rows,
        "freshness_p50_s": round(_quantile(counts, 0.5), 3),
        "freshness_p99_s": round(_quantile(counts, 0.99), 3),
        "within_2_s_ratio": round(counts[GOAL_S] / rows, 5),
        "report_p99_s_worst": max(report["freshness_p99_s"] or 0.0 for report in held.reports),
    }


def _quantile(counts: Mapping[float, int], share: float) -> float:
    """Of cumulative counts by bound: linear within a bucket; infinite in the last one."""
    wanted, below, under = share * counts[float("inf")], 0.0, 0
    for bound, number in sorted(counts.items()):
        if number >= wanted:
            return below + (bound - below) * (wanted - under) / (number - under) if number > under else below
        below, under = bound, number
    return float("inf")


def _memory(held: Held) -> dict[str, Any]:
    times, sizes = [s.time_s for s in held.samples], [s.memory.all for s in held.samples]
    slope, _ = statistics.linear_regression(times, sizes)
    level = statistics.fmean(sizes)
    return {
        "memory_mib": round(level / 2**20, 1),
        "memory_growth_per_20_min_ratio": round(slope * 1200 / level, 5),
        "memory_spread_ratio": round(statistics.stdev(sizes) / level, 5),
        "memory_mib_by_fifth": by_fifth(sizes),
        "anonymous_mib_by_fifth": by_fifth([s.memory.anonymous for s in held.samples]),
    }


@contextmanager
def _producer(cluster: KafkaCluster, topic: str, rows: int, rate: int) -> Iterator[subprocess.Popen[bytes]]:
    place = ["--kafka", cluster.bootstrap_servers[0], "--topic", topic, "--mean-length", "2", "--rows", str(rows)]
    pace = ["--rate", str(rate), "--rows-per-message", str(max(1, rate // MESSAGES_PER_S))]
    producer = subprocess.Popen([*COMMAND, "produce", *place, *pace], stdout=subprocess.DEVNULL)
    try:
        yield producer
    finally:
        producer.terminate()
        producer.wait(timeout=60)


def _ages(port: int) -> dict[float, int]:
    """Rows by age, cumulated, from the trainer's histogram of freshness."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    ages: dict[float, int] = {float("inf"): 0}
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(f"{metrics.FRESHNESS_SECONDS.name}_bucket"):
            bound = float(name.partition('le="')[2].partition('"')[0])
            ages[bound] = ages.get(bound, 0) + int(float(value))
    return ages


if __name__ == "__main__":
    main()
