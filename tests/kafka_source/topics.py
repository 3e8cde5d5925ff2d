"""Messages, jobs and a training loop without a model: what tests of the Kafka source share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from rap_contract.job import RAPJobSpec
from rap_trainer.batch import Positions, RawBatch
from rap_trainer.stream.kafka.source import KafkaSource, KafkaSourceOptions
from servers.kafka_cluster import KafkaCluster
from servers.waiting import wait_until

DEADLINE_S = 60.0
COLUMNS = {"label": "int32", "row": "int64", "dense": "float32", "ids": "list<int64>"}


def spec(cluster: KafkaCluster, topic: str, folder: Path, *, batch_rows: int = 8, **kafka: Any) -> RAPJobSpec:
    """A job that reads `topic`; `kafka` are keys of spec.source.kafka."""
    text = kafka.get("format") in ("csv", "tsv")
    source = {"bootstrapServers": cluster.bootstrap_servers, "topic": topic, "errorBudget": {"ratio": 1.0}, **kafka}
    return RAPJobSpec.model_validate(
        {
            "source": {"kafka": source},
            "columns": {name: kind for name, kind in COLUMNS.items() if not (text and name == "ids")},
            "label": "label",
            "features": [{"columns": ["dense"], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": batch_rows},
            "checkpoint": {"path": str(folder / "checkpoints")},
        }
    )


def table(rows: Sequence[int], *, bad: Sequence[int] = ()) -> pa.Table:
    """The given row numbers; those of `bad` have the label 7."""
    return pa.table(
        {
            "label": pa.array([7 if row in bad else row % 2 for row in rows], pa.int32()),
            "row": pa.array(rows, pa.int64()),
            "dense": pa.array([None if row % 5 == 0 else row / 2 for row in rows], pa.float32()),
            "ids": pa.array([list(range(row, row + row % 4)) for row in rows], pa.list_(pa.int64())),
        }
    )


def arrow(rows: pa.Table, *, compression: str | None = None, as_file: bool = False) -> bytes:
    """The rows as one message."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    create = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with create(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def send(cluster: KafkaCluster, topic: str, values: Sequence[bytes | None], partition: int = 0) -> None:
    """Messages into one partition, delivered when this returns."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_request_size=32 << 20)
    sent = [producer.send(topic, value, key=b"k", partition=partition) for value in values]
    for each in sent:
        each.get(30)
    producer.close()


def received(cluster: KafkaCluster, topic: str, count: int) -> list[Any]:
    """The first `count` messages of partition 0."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[Any] = []

    def has_all() -> bool:
        for records in consumer.poll(200).values():
            found.extend(records)
        return len(found) >= count

    wait_until(has_all, limit_s=30, what=f"{count} messages of {topic}")
    consumer.close()
    return found


@contextmanager
def ranks(
    job: RAPJobSpec, world_size: int = 1, *, start: Positions | None = None, options: KafkaSourceOptions | None = None
) -> Iterator[list[KafkaSource]]:
    """The sources of all ranks, in one process."""
    shared = options or KafkaSourceOptions(ring_bytes=1 << 20)

    def open_rank(rank: int) -> KafkaSource:
        return KafkaSource(job, rank=rank, world_size=world_size, start=start, options=shared)

    with ThreadPoolExecutor(world_size) as pool:  # each waits for its reader process
        sources = list(pool.map(open_rank, range(world_size)))
    try:
        yield sources
    finally:
        for source in sources:
            source.close()


def step(sources: Sequence[KafkaSource], *, flush: bool = True) -> list[RawBatch]:
    """The next step of all ranks, waiting for it."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        offers = [source.offer() for source in sources]
        decisions = {source.shares(offers, flush=flush) for source in sources}
        assert len(decisions) == 1, "ranks disagree"
        shares = decisions.pop()
        if shares is not None:
            return [source.take(shares) for source in sources]
        time.sleep(0.005)
    raise AssertionError(f"no step within {DEADLINE_S} s")


def rows_of(sources: Sequence[KafkaSource], count: int) -> list[list[int]]:
    """Row numbers by rank, from steps until `count` rows came."""
    found: list[list[int]] = [[] for _ in sources]
    while sum(map(len, found)) < count:
        for mine, batch in zip(found, step(sources), strict=True):
            mine += batch.columns["row"].values_N.tolist()
    return found


def until(sources: Sequence[KafkaSource], condition: Callable[[], bool], what: str) -> None:
    """Offers again and again, as training does while it waits, until the condition holds."""

    def look() -> bool:
        for source in sources:
            source.offer()
        return condition()

    wait_until(look, limit_s=DEADLINE_S, what=what)
