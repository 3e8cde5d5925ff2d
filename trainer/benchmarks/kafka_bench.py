"""A Kafka topic to training batches beside kafka-python's bare poll of the same messages. Prints JSON lines.

`python trainer/benchmarks/kafka_bench.py --bootstrap HOST:PORT [--rows N] [--repeats R]`. Fills a topic of one
partition with Criteo's 40 columns, then both sides read it from the beginning in turn, the source in its own process and
this one. On a machine that is busy with other work, the broker included, only the shares of medians mean something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from rap_contract.job import RAPJobSpec
from rap_trainer.produce.kafka_topic import Topic, write_topic
from rap_trainer.produce.options import Produce
from rap_trainer.stream.kafka.reader import FETCH_BYTES, FRAME_BYTES
from rap_trainer.stream.kafka.settings import MessageFormat
from rap_trainer.stream.kafka.source import KafkaSource

BATCH_ROWS = 4096


def main() -> None:
    """Runs every format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rows-per-message", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    formats: tuple[MessageFormat, ...] = ("arrow", "json", "tsv")
    for format_name in formats:
        rows = options.rows if format_name == "arrow" else options.rows // 2
        _compare(options.bootstrap, format_name, rows, options.rows_per_message, options.repeats)


def _compare(bootstrap: str, format_name: MessageFormat, rows: int, rows_per_message: int, repeats: int) -> None:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1)])
    try:
        topic = Topic(bootstrap_servers=(bootstrap,), topic=name, format=format_name, rows_per_message=rows_per_message)
        write_topic(Produce(rows=rows), topic)
        sides: dict[str, Callable[[], tuple[float, int]]] = {
            "poll": lambda: _poll(bootstrap, name, -(-rows // rows_per_message)),
            "source": lambda: _source(bootstrap, name, format_name, rows),
        }
        times: dict[str, list[float]] = {side: [] for side in sides}
        num_bytes = 0
        for _ in range(repeats):
            for side, run in sides.items():
                seconds, seen = run()
                times[side].append(seconds)
                num_bytes = seen or num_bytes
    finally:
        admin.delete_topics([name])
        admin.close()
    median = {side: statistics.median(values) for side, values in times.items()}
    result = {
        "format": format_name,
        "rows": rows,
        "megabytes": round(num_bytes / 1e6, 1),
        **{f"{side}_mb_per_s": round(num_bytes / 1e6 / seconds, 1) for side, seconds in median.items()},
        "source_rows_per_s": round(rows / median["source"]),
        "source_over_poll": round(median["poll"] / median["source"], 3),
        "spread": {side: [round(min(values), 3), round(max(values), 3)] for side, values in times.items()},
    }
    print(json.dumps(result), flush=True)


def _poll(bootstrap: str, topic: str, messages: int) -> tuple[float, int]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, fetch_max_bytes=FETCH_BYTES, max_partition_fetch_bytes=FRAME_BYTES
    )
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    num_bytes = count = 0
    began_s = time.perf_counter()
    while count < messages:
        for records in consumer.poll(1000, max_records=20_000).values():
            count += len(records)
            num_bytes += sum(len(record.value) for record in records)
    seconds = time.perf_counter() - began_s
    consumer.close()
    return seconds, num_bytes


def _source(bootstrap: str, topic: str, format_name: str, rows: int) -> tuple[float, int]:
    source = KafkaSource(_job(bootstrap, topic, format_name))
    began_s, count = time.perf_counter(), 0  # partitions are known and nothing is fetched yet, as for the poll
    try:
        while count < rows:
            offer = source.offer()
            if offer.rows == 0 or (offer.rows < BATCH_ROWS and count + offer.rows < rows):
                time.sleep(0.0005)
                continue
            count += source.take([offer.rows]).num_rows
        return time.perf_counter() - began_s, 0
    finally:
        source.close()


def _job(bootstrap: str, topic: str, format_name: str) -> RAPJobSpec:
    csv = {"hexColumns": ["cat_{0..25}"]} if format_name == "tsv" else {}
    kafka = {"bootstrapServers": [bootstrap], "topic": topic, "format": format_name, "csv": csv}
    return RAPJobSpec.model_validate(
        {
            "source": {"kafka": kafka},
            "columns": {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "int64"},
            "label": "label",
            "features": [{"columns": ["int_0"], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": BATCH_ROWS},
            "checkpoint": {"path": str(Path("unused"))},
        }
    )


if __name__ == "__main__":
    main()
