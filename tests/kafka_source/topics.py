"""Messages, jobs and a training loop without a model: what tests of the Kafka source share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from rap_contract.job import RAPJobSpec
from rap_trainer.batch import Position, Positions, RawBatch
from rap_trainer.step.ledger import Ledger, replay
from rap_trainer.stream.kafka.source import KafkaSource, KafkaSourceOptions
from rap_trainer.stream.node_sharing import Sharing
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


def send(
    cluster: KafkaCluster, topic: str, values: Sequence[bytes | None], partition: int = 0, *, key: bytes = b"k"
) -> None:
    """Messages of one key into one partition, delivered when this returns."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_request_size=32 << 20)
    sent = [producer.send(topic, value, key=key, partition=partition) for value in values]
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
    job: RAPJobSpec,
    world_size: int = 1,
    *,
    start: Positions | None = None,
    options: KafkaSourceOptions | None = None,
    nodes: int | None = None,
) -> Iterator[list[KafkaSource]]:
    """The sources of all ranks, in one process; with `nodes`, the ranks of each node share a reader."""
    shared = options or KafkaSourceOptions(ring_bytes=1 << 20)
    local_size = 1 if nodes is None else world_size // nodes
    addresses = [f"test-{secrets.token_hex(8)}" for _ in range(world_size)]

    def open_rank(rank: int) -> KafkaSource:
        node, local_rank = divmod(rank, local_size)
        place = Sharing(address=addresses[node], local_rank=local_rank, local_size=local_size)
        sharing = None if nodes is None else place
        return KafkaSource(job, rank=rank, world_size=world_size, start=start, sharing=sharing, options=shared)

    with ThreadPoolExecutor(world_size) as pool:  # each waits for its reader process
        sources = list(pool.map(open_rank, range(world_size)))
    try:
        yield sources
    finally:
        for source in sources:
            source.close()


def agreed(sources: Sequence[KafkaSource]) -> list[int]:
    """Rows that each rank offers, once all have heard each other's totals."""
    offers = [source.offer() for source in sources]
    for source in sources:
        source.hear(sum(offer.seen_rows for offer in offers), sum(offer.bad_rows for offer in offers))
    return [offer.rows for offer in offers]


def step(sources: Sequence[KafkaSource], *, flush: bool = True) -> list[RawBatch]:
    """The next step of all ranks, waiting for it."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        ready = agreed(sources)
        decisions = {source.shares(ready, flush=flush) for source in sources}
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
        agreed(sources)
        return condition()

    wait_until(look, limit_s=DEADLINE_S, what=what)


def fill(cluster: KafkaCluster, topic: str, *, partitions: int, messages: int, rows: int, first: int = 0) -> list[int]:
    """Arrow messages of `rows` rows in each partition; the row numbers, all different."""
    numbers = iter(range(first, first + partitions * messages * rows))
    for partition in range(partitions):
        values = [arrow(table([next(numbers) for _ in range(rows)])) for _ in range(messages)]
        send(cluster, topic, values, partition)
    return list(range(first, first + partitions * messages * rows))


class Training:
    """Steps of all ranks without a model, each noted in the ledger before its rows count, as the loop does it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._attempt = self._step = self._good = 0
        self.rows: list[int] = []
        """Row numbers that steps trained, in any order."""
        self.positions: dict[str, Position] = {}
        """What a checkpoint after the last step would hold."""

    @contextmanager
    def attempt(
        self,
        job: RAPJobSpec,
        world_size: int = 1,
        *,
        nodes: int | None = None,
        options: KafkaSourceOptions | None = None,
    ) -> Iterator[list[KafkaSource]]:
        """The sources of one attempt, which goes on from the last step."""
        self._attempt += 1
        start = dict(self.positions)
        with ranks(job, world_size, start=start, nodes=nodes, options=options) as sources:
            self._ledgers = [
                Ledger(self._directory, rank=rank, attempt=self._attempt, resumed_step=self._step, start=start)
                for rank in range(world_size)
            ]
            yield sources
        for ledger in self._ledgers:
            ledger.close()

    @property
    def _directory(self) -> Path:
        """Of one ledger for each attempt: the numbers of ranks differ."""
        return self._folder / f"ledger-{self._attempt}"

    def train(self, sources: Sequence[KafkaSource], count: int) -> None:
        """Steps until `count` more rows are trained."""
        wanted = len(self.rows) + count
        while len(self.rows) < wanted:
            batches = step(sources)
            self._step += 1
            for source, batch, ledger in zip(sources, batches, self._ledgers, strict=True):
                source.settle()  # as if a checkpoint followed each step
                positions = source.positions()
                ledger.step(self._step, batch.num_rows, positions)
                self.positions |= positions
                self.rows += batch.columns["row"].values_N.tolist()

    def drain(self, sources: Sequence[KafkaSource]) -> None:
        """Steps until nothing is left in the topic."""

        def is_empty() -> bool:
            while any(source.offer().rows for source in sources):
                self.train(sources, 1)
            lags = [source.lag() for source in sources]  # seconds are known once brokers told where partitions end
            return all(lag.records == 0 and lag.seconds is not None for lag in lags)

        wait_until(is_empty, limit_s=DEADLINE_S, what="the topic is drained")

    def check(self, produced: Sequence[int], ends: dict[str, int], *, shared: bool = False) -> None:
        """Every row was trained once, and the ledgers lead without gap or overlap from the beginning to `ends`."""
        assert sorted(self.rows) == sorted(produced)
        at: dict[str, Position | None] = {}
        rows = 0
        for attempt in range(1, self._attempt + 1):
            account = replay(self._folder / f"ledger-{attempt}")
            before = dict(at)
            for rank, steps in account.items():
                rows += sum(each.rows for each in steps.values())
                where = dict(before)
                for number in sorted(steps):
                    for unit, (begin, end) in steps[number].spans.items():
                        if "@" in unit:  # which topic it is, without rows
                            continue
                        assert begin == where.get(unit), f"step {number}, rank {rank}, {unit}"
                        where[unit] = end
                moved = {unit: end for unit, end in where.items() if end != before.get(unit)}
                assert shared or not (moved.keys() & {u for u, e in at.items() if e != before.get(u)}), (
                    "one reader each"
                )
                at |= moved
        assert rows == len(produced)
        assert {unit: end.offset for unit, end in at.items() if end is not None} == ends
