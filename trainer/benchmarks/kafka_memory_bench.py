"""Memory of a reader and its rank while a topic is read as fast as they can. Prints one JSON line; needs no broker.

`python trainer/benchmarks/kafka_memory_bench.py [--seconds 60]`. A stand-in for a broker (`kafka_replay.py`) never ends, no
model is trained: so a minute moves as many rows as a trainer of two cores takes in hours, and what leaks by row, message
or answer shows. What leaks by time or by step shows in `kafka_run_bench.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from kafka_sides import BATCH_ROWS, job  # type: ignore[import-not-found]  # beside this file
from rap_trainer.stream.kafka.source import KafkaSource

ENDLESS = 1_000_000_000  # messages
SAMPLE_EVERY_S = 0.25
FIFTHS = 5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Reads, samples, tells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--format", default="arrow")
    options = parser.parse_args()
    command = [sys.executable, str(Path(__file__).with_name("kafka_replay.py")), "--format", options.format]
    with subprocess.Popen(
        [*command, "--messages", str(ENDLESS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stand_in:
        assert stand_in.stdout is not None
        place = json.loads(stand_in.stdout.readline())
        source = KafkaSource(job(place["bootstrap"], place["topic"], options.format))
        try:
            rows, samples = _read(source, options.seconds)
        finally:
            source.close()
            stand_in.communicate()
    result = {
        "bench": "kafka_memory",
        "format": options.format,
        "seconds": options.seconds,
        "rows": rows,
        "gigabytes": round(rows * place["message_bytes"] / 1000 / 1e9, 2),
        **{f"{name}_mib_by_fifth": _by_fifth(sizes) for name, sizes in samples.items()},
    }
    print(json.dumps(result), flush=True)


def _read(source: KafkaSource, seconds: float) -> tuple[int, dict[str, list[int]]]:
    """Rows read, and resident bytes of both processes over the time."""
    samples: dict[str, list[int]] = {"rank": [], "reader": []}
    rows, began_s, sampled_s = 0, time.monotonic(), 0.0
    while (now_s := time.monotonic()) - began_s < seconds:
        if source.offer().rows >= BATCH_ROWS:
            rows += source.take([BATCH_ROWS]).num_rows
        else:
            time.sleep(0.0005)
        if now_s - sampled_s >= SAMPLE_EVERY_S:
            sampled_s = now_s
            source.lag()  # as reports ask: what waits to be told must not pile up
            samples["rank"].append(_resident_bytes(os.getpid()))
            samples["reader"].append(_resident_bytes(source.reader_pids[0]))
    return rows, samples


def _by_fifth(sizes: list[int]) -> list[float]:
    bounds = [len(sizes) * fifth // FIFTHS for fifth in range(FIFTHS + 1)]
    return [round(statistics.median(sizes[begin:end]) / 2**20, 1) for begin, end in pairwise(bounds)]


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


if __name__ == "__main__":
    main()
