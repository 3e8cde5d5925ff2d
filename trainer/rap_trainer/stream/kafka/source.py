"""A Kafka topic as a source of training rows.

Each rank reads partitions of its own and trains its own rows, so a full step needs a full batch on every rank. Reading,
parsing and decoding happen ahead, in a process and a thread; positions move only with what is taken, and a checkpoint
holds them: what Kafka knows of the job's progress is for monitoring alone.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rap_contract import metrics
from rap_contract.job import RAPJobSpec
from rap_contract.pod import ENV_JOB_NAME

from rap_trainer.batch import Position, Positions, RawBatch
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.backlog import Backlog, Consumed
from rap_trainer.stream.decode import declared
from rap_trainer.stream.kafka.assignment import partition_of, unit_of
from rap_trainer.stream.kafka.bad_records import BadRecords
from rap_trainer.stream.kafka.chunks import MessageChunk, empty_rows
from rap_trainer.stream.kafka.feed import Feed
from rap_trainer.stream.kafka.frames import Place, ReaderOptions
from rap_trainer.stream.kafka.lag import LagMeter, PartitionLag, partition_lag, total
from rap_trainer.stream.kafka.settings import settings_of
from rap_trainer.stream.open_file import text_types, wanted_columns
from rap_trainer.stream.rows import Span, batch_of
from rap_trainer.stream.source import Lag, Offer

_START_MARGIN_S = 30.0  # beyond the reader's own wait: a loaded machine starts a process slowly


@dataclass(frozen=True, kw_only=True)
class KafkaSourceOptions:
    """How a rank reads; the job says what."""

    limit_bytes: int = 128 << 20
    """Decoded bytes held ready; a batch is held even if it is more."""
    ring_bytes: int = 64 << 20
    """Shared memory between the reader process and this one."""
    wait_s: float = 60.0
    """For a broker and the topic to be there at the start."""


@dataclass(frozen=True, kw_only=True)
class KafkaCounts:
    """What a source counted so far, for metrics."""

    rows: int
    """Rows consumed by this rank, the bad ones included."""
    bad_rows: Mapping[str, int]
    """By reason."""
    quarantined_files: Mapping[str, int]
    """None: messages are not files."""
    lost_messages: int
    """Deleted by retention before they were read."""
    empty_messages: int
    messages: int
    """Read, trained or not."""
    message_bytes: int
    schema_changes: int
    dead_letters: Mapping[str, int]
    """By destination."""
    buffered_bytes: int


class KafkaSource:
    """Implements Source and Monitored over `spec.source.kafka`.

    `start` are positions of a checkpoint, of all ranks. Waits for the first look at the topic; what goes wrong then is
    raised by the first offer.
    """

    def __init__(
        self,
        spec: RAPJobSpec,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: Positions | None = None,
        options: KafkaSourceOptions = KafkaSourceOptions(),  # a frozen value
    ) -> None:
        kafka = spec.source.kafka
        assert kafka is not None
        self._kafka, self._rank = kafka, rank
        self._batch_rows = spec.trainer.batch_size_per_gpu
        columns, types = declared(spec), _types(spec)
        self._empty = empty_rows(columns, types)
        self._positions: dict[str, Position] = {}
        self._unsaved: dict[str, Position] = {}
        self._messages: Counter[int] = Counter()
        self._rows = 0
        self._oldest_s: dict[int, float] = {}
        self._saved: Positions = {}
        self._lag_meter = LagMeter(kafka.topic)
        self._bad = BadRecords(kafka)
        self._backlog = Backlog(limit_bytes=options.limit_bytes, min_rows=self._batch_rows)
        mine, has_start = _own_places(start or {}, kafka.topic, rank, world_size)
        self._positions.update({unit_of(kafka.topic, p): Position(*place) for p, place in mine.items()})
        self._feed = Feed(
            ReaderOptions(
                settings=settings_of(kafka),
                rank=rank,
                world_size=world_size,
                start=mine,
                has_start=has_start,
                types=types,
                group=f"rap-{os.environ.get(ENV_JOB_NAME) or Path(spec.checkpoint.path).name}",
                wait_s=options.wait_s,
                ring_file=-1,
            ),
            columns,
            self._backlog,
            ring_bytes=options.ring_bytes,
        )
        self._feed.start()
        self._feed.started.wait(options.wait_s + _START_MARGIN_S)

    def offer(self) -> Offer:
        """This rank's good rows that are ready, at most its batch. Raises SourceError and DataBudgetExceeded."""
        self._account(self._backlog.take_bad_head(), keep_position=False)
        rows, _, error = self._backlog.available()
        if error is not None and rows < self._batch_rows:
            raise error
        return Offer(rows=min(rows, self._batch_rows))

    def shares(self, offers: Sequence[Offer], *, flush: bool) -> tuple[int, ...] | None:
        """A full batch for every rank, or with `flush` what each has, if any has some."""
        rows = tuple(offer.rows for offer in offers)
        full = all(count >= self._batch_rows for count in rows)
        return rows if full or (flush and sum(rows) > 0) else None

    def take(self, shares: Sequence[int]) -> RawBatch:
        """This rank's next rows; an empty share gives a batch of 0 rows."""
        num_rows = shares[self._rank]
        spans, consumed = self._backlog.take(num_rows, 0, num_rows)
        self._keep_unsaved()
        self._account(consumed, keep_position=True)
        return batch_of(spans or [Span(self._empty, 0, 0)], sum(shares))

    def positions(self) -> Positions:
        """Per partition of this rank: the next message, and row in it, that is not taken."""
        self._bad.flush()  # a checkpoint may follow: its bad rows are not seen again
        begun = {unit_of(self._kafka.topic, p): Position(*place) for p, place in self._feed.begun().items()}
        return {**begun, **self._positions}

    def saved(self, positions: Positions) -> None:
        """Commits to the consumer group what a checkpoint holds, for monitoring."""
        self._saved = positions
        offsets = {partition_of(unit, self._kafka.topic): position.offset for unit, position in positions.items()}
        self._feed.commit({partition: offset for partition, offset in offsets.items() if partition is not None})

    def lag(self) -> Lag:
        """Messages of this rank's partitions that are not trained yet, as of about a second ago."""
        return total(self._lags())

    def meter(self, store: MetricStore) -> None:
        """Writes what only a topic has into this rank's metrics."""
        counts, topic = self.counts(), self._kafka.topic
        self._lag_meter.report(store, self._lags())
        for unit, position in self._positions.items():
            store.set(metrics.CURRENT_OFFSET, position.offset, topic=topic, partition=partition_of(unit, topic))
        for unit, position in self._saved.items():
            store.set(metrics.COMMITTED_OFFSET, position.offset, topic=topic, partition=partition_of(unit, topic))
        for destination, number in counts.dead_letters.items():
            store.raise_to(metrics.DEAD_LETTERS, number, destination=destination)
        store.raise_to(metrics.SOURCE_BYTES, counts.message_bytes)
        store.raise_to(metrics.LOST_RECORDS, counts.lost_messages)
        store.raise_to(metrics.SCHEMA_CHANGES, counts.schema_changes)
        store.set(metrics.SOURCE_IDLE_SECONDS, self._feed.idle_s)
        store.set(metrics.ERROR_BUDGET_RATIO, self._bad.allowed_ratio)
        store.set(metrics.BAD_RECORDS_RATIO, self._bad.ratio)

    def _lags(self) -> dict[int, PartitionLag]:
        read, now_s = self._feed.messages(), time.time()
        return {
            partition: partition_lag(
                standing=standing,
                read=read.get(partition, 0),
                consumed=self._messages[partition],
                oldest_s=self._oldest_s.get(partition),
                now_s=now_s,
            )
            for partition, standing in self._feed.standing().items()
        }

    def counts(self) -> KafkaCounts:
        """Totals since this source began."""
        counted = self._feed.counted()
        return KafkaCounts(
            rows=self._rows,
            bad_rows=dict(self._bad.rows),
            quarantined_files={},
            lost_messages=counted["lost"],
            empty_messages=counted["empty"],
            messages=sum(self._feed.messages().values()),
            message_bytes=counted["bytes"],
            schema_changes=counted["schema_changes"],
            dead_letters=self._bad.kept,
            buffered_bytes=self._backlog.num_bytes,
        )

    @property
    def reader_pid(self) -> int | None:
        """Process number of the running reader."""
        return self._feed.pid

    def close(self) -> None:
        """Stops the reader and closes the dead letters."""
        self._backlog.close()
        self._feed.join()
        self._bad.close()

    def _keep_unsaved(self) -> None:
        self._positions.update(self._unsaved)
        self._unsaved.clear()

    def _account(self, consumed: Sequence[Consumed], *, keep_position: bool) -> None:
        """Counts what was consumed and moves positions: at once, or with the next good row."""
        for part in consumed:
            chunk = part.chunk
            assert isinstance(chunk, MessageChunk)
            target = self._positions if keep_position else self._unsaved
            target[chunk.unit] = chunk.position(part.next_row)
            self._rows += part.next_row - part.first_row
            if chunk.num_messages:
                before = chunk.messages_before(part.first_row) if part.first_row else 0
                self._messages[chunk.partition] += chunk.messages_before(part.next_row) - before
                self._oldest_s[chunk.partition] = chunk.time_s(part.next_row)
            self._bad.add(chunk, part.bad, rows=part.next_row - part.first_row)
        self._bad.check()


def _own_places(start: Positions, topic: str, rank: int, world_size: int) -> tuple[dict[int, Place], bool]:
    """This rank's places among all ranks' positions, and whether there are any at all."""
    known = {p: place for unit, place in start.items() if (p := partition_of(unit, topic)) is not None}
    mine = {p: (place.offset, place.row) for p, place in known.items() if p % world_size == rank}
    return mine, bool(known)


def _types(spec: RAPJobSpec) -> pa.Schema:
    """Which columns are wanted, and how text is parsed into them: JSON has lists, hexadecimal stays text."""
    kafka = spec.source.kafka
    assert kafka is not None
    columns = declared(spec)
    types = text_types(columns)
    fields = []
    for name in wanted_columns(columns):
        value_type = columns.columns.get(name)
        is_list = value_type is not None and value_type.is_list and kafka.format == "json"
        fields.append(pa.field(name, pa.list_(types[name]) if is_list else types[name]))
    return pa.schema(fields)
