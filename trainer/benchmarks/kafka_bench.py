"""A Kafka topic to training batches beside other ways to read the same messages. Prints JSON lines.

`uv run --with confluent-kafka python trainer/benchmarks/kafka_bench.py [--bootstrap HOST:PORT] [--rows N] [--repeats R]`.
Without a broker's address it starts one (the tests' own; PYTHONPATH must name operator, trainer and tests), or with
`--stand-in` what answers fetches from memory (`kafka_replay.py`). Fills a topic of one partition with Criteo's 40 columns, then every side reads it from its beginning in turn, each in a process of
its own. Rates are per CPU second: of the process, and for the source of the reader, which is what a core of reading is
worth. Where other work or the broker shares the cores, wall times mean little; compare shares.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from rap_trainer.produce.kafka_topic import Topic, write_topic
from rap_trainer.produce.options import Produce
from rap_trainer.stream.kafka.fast_fetch import MALLOC
from rap_trainer.stream.kafka.settings import MessageFormat

HERE = Path(__file__).parent
SIDES: dict[MessageFormat, tuple[str, ...]] = {
    "arrow": ("poll", "fast_poll", "confluent", "source"),
    "json": ("poll", "parse_only", "pyarrow_json", "per_row", "source"),
    "tsv": ("poll", "source"),
}


def main() -> None:
    """Runs every format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rows-per-message", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", nargs="+", default=list(SIDES))
    parser.add_argument("--stand-in", action="store_true", help="kafka_replay.py in place of a broker")
    options = parser.parse_args()
    for format_name in options.formats:
        rows = options.rows if format_name == "arrow" else options.rows // 4
        with _filled(format_name, rows, options) as (bootstrap, topic):
            place = ["--bootstrap", bootstrap, "--topic", topic, "--format", format_name]
            size = ["--rows", str(rows), "--messages", str(-(-rows // options.rows_per_message))]
            _compare(format_name, rows, options.repeats, [*place, *size])


@contextmanager
def _filled(format_name: MessageFormat, rows: int, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """A broker and a topic of so many rows."""
    if options.stand_in:
        messages = rows // options.rows_per_message
        shape = ["--messages", str(messages), "--rows-per-message", str(options.rows_per_message)]
        command = [sys.executable, str(HERE / "kafka_replay.py"), "--format", format_name, *shape]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stand_in:
            assert stand_in.stdout is not None
            place = json.loads(stand_in.stdout.readline())
            yield place["bootstrap"], place["topic"]
            stand_in.communicate()
        return
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with _broker(options.bootstrap) as bootstrap:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1)])
        try:
            topic = Topic(
                bootstrap_servers=(bootstrap,),
                topic=name,
                format=format_name,
                rows_per_message=options.rows_per_message,
            )
            write_topic(Produce(rows=rows), topic)
            yield bootstrap, name
        finally:
            admin.delete_topics([name])
            admin.close()


@contextmanager
def _broker(address: str | None) -> Iterator[str]:
    if address is not None:
        yield address
        return
    from servers.kafka_cluster import THROUGHPUT_FLAGS, KafkaCluster

    with tempfile.TemporaryDirectory() as folder:
        cluster = KafkaCluster(Path(folder), num_brokers=1, java_flags=THROUGHPUT_FLAGS)
        try:
            cluster.start()
            yield cluster.bootstrap_servers[0]
        finally:
            cluster.stop()


def _compare(format_name: MessageFormat, rows: int, repeats: int, arguments: list[str]) -> None:
    sides = [side for side in SIDES[format_name] if side != "confluent" or find_spec("confluent_kafka") is not None]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            found[side].append(_run(side, arguments))
    for side, runs in found.items():
        print(json.dumps(_line(format_name, side, rows, runs)), flush=True)


def _run(side: str, arguments: list[str]) -> dict[str, float]:
    command = [sys.executable, str(HERE / "kafka_sides.py"), side, *arguments]
    environment = {**MALLOC, **os.environ} if side == "fast_poll" else None
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode != 0:
        raise SystemExit(f"{side} failed:\n{answer.stderr[-3000:]}")
    result: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return result


def _line(format_name: str, side: str, rows: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    core_s = [run.get("reader_cpu_s", run["cpu_s"]) for run in runs]
    median_s, all_s = statistics.median(core_s), statistics.median(run["cpu_s"] for run in runs)
    seconds = statistics.median(run["seconds"] for run in runs)
    num_bytes = runs[0]["bytes"]
    return {
        "format": format_name,
        "side": side,
        "rows": rows,
        "megabytes": round(num_bytes / 1e6, 1),
        "rows_per_core_s": round(rows / median_s),
        "mb_per_core_s": round(num_bytes / 1e6 / median_s, 1),
        "rows_per_cpu_s_with_decoding": round(rows / all_s),
        "rows_per_s": round(rows / seconds),
        "core_s_spread": [round(min(core_s), 3), round(max(core_s), 3)],
    }


if __name__ == "__main__":
    main()
