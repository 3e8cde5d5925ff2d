"""A Kafka topic as a source of training rows.

Each rank reads partitions of its own and trains its own rows, so a full step needs a full batch on every rank; where
there are fewer partitions than ranks, the ranks of a node read the same rows and train slices of them. Reading, parsing and decoding happen ahead, in a process and a thread; positions move only with what is taken, and a checkpoint
holds them: what Kafka knows of the job's progress is for monitoring alone.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from rap_contract import metrics
from rap_contract.job import RAPJobSpec
from rap_contract.pod import ENV_JOB_NAME

from rap_trainer.batch import Position, Positions, RawBatch
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.backlog import Backlog, Consumed
from rap_trainer.stream.decode import declared
from rap_trainer.stream.kafka.assignment import identity_of, identity_unit, partition_of, unit_of
from rap_trainer.stream.kafka.bad_records import BadRecords
from rap_trainer.stream.kafka.chunks import MessageChunk, empty_rows
from rap_trainer.stream.kafka.feed import Feed
from rap_trainer.stream.kafka.feeds import Feeds
from rap_trainer.stream.kafka.frames import Place, ReaderOptions
from rap_trainer.stream.kafka.lag import LagMeter, PartitionLag, Watermarks, partition_lag, total
from rap_trainer.stream.kafka.pinning import pin
from rap_trainer.stream.kafka.reader_process import OpenReader, ReaderProcess
from rap_trainer.stream.kafka.settings import settings_of
from rap_trainer.stream.kafka.sharing import FollowingReader, LeadingReader
from rap_trainer.stream.node_sharing import Sharing
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
    device: torch.device | None = None
    """Where batches go: the ring is pinned for a GPU."""


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
    """Implements Source, Hearing and Monitored over `spec.source.kafka`.

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
        sharing: Sharing | None = None,
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
        self._watermarks = Watermarks()
        self._taken: tuple[float, torch.Tensor] | None = None
        self._saved: Positions = {}
        self._lag_meter = LagMeter(kafka.topic)
        self._sharers = 1 if sharing is None else sharing.local_size
        self._leads = sharing is None or sharing.leads
        """Others train slices of the same rows, but account for none of them."""
        self._bad = BadRecords(kafka if self._leads else kafka.model_copy(update={"dead_letter": None}))
        self._group_rows = self._batch_rows * self._sharers
        self._backlog = Backlog(limit_bytes=options.limit_bytes, min_rows=self._group_rows)
        part, num_parts = rank // self._sharers, world_size // self._sharers
        mine, has_start = _own_places(start or {}, kafka.topic, part, num_parts)
        self._positions.update({unit_of(kafka.topic, p): Position(*place) for p, place in mine.items()})
        readers = kafka.readers_per_rank if sharing is None else 1
        common = ReaderOptions(
            settings=settings_of(kafka),
            part=part,
            num_parts=num_parts * readers,
            start=mine,
            has_start=has_start,
            topic_id=identity_of(start or {}, kafka.topic),
            types=types,
            group=f"rap-{os.environ.get(ENV_JOB_NAME) or Path(spec.checkpoint.path).name}",
            wait_s=options.wait_s,
            ring_file=-1,
        )
        self._feeds = Feeds(
            [_own_part(common, part + num_parts * reader) for reader in range(readers)],
            lambda own: Feed(
                own, columns, self._backlog, open_reader=_opener(sharing, options), may_replace=sharing is None
            ),
        )
        self._feeds.start()
        self._feeds.wait_started(options.wait_s + _START_MARGIN_S)

    def offer(self) -> Offer:
        """The good rows that are ready, at most a batch of each rank that shares them. Raises SourceError."""
        self._account(self._backlog.take_bad_head(), keep_position=False)
        rows, _, error = self._backlog.available()
        if error is not None and rows < self._group_rows:
            raise error
        seen, bad = self._bad.totals
        return Offer(rows=min(rows, self._group_rows), seen_rows=seen, bad_rows=bad)

    def hear(self, seen_rows: int, bad_rows: int) -> None:
        """Judges the bad rows of all ranks. Raises DataBudgetExceeded."""
        self._bad.hear(seen_rows, bad_rows)

    def shares(self, ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None:
        """A full batch for every rank, or with `flush` what each has, if any has some."""
        shares = tuple(ready) if self._sharers == 1 else self._slices(ready)
        return shares if min(shares) >= self._batch_rows or (flush and any(shares)) else None

    def _slices(self, ready: Sequence[int]) -> tuple[int, ...]:
        """Of ranks that share rows, and may have heard of them at other times."""
        shares: list[int] = []
        for first in range(0, len(ready), self._sharers):
            rows = min(ready[first : first + self._sharers])
            bounds = [i * rows // self._sharers for i in range(self._sharers + 1)]
            shares += [bounds[i + 1] - bounds[i] for i in range(self._sharers)]
        return tuple(shares)

    def take(self, shares: Sequence[int]) -> RawBatch:
        """This rank's next rows; an empty share gives a batch of 0 rows."""
        begin = self._rank - self._rank % self._sharers
        first = sum(shares[begin : self._rank])
        spans, consumed = self._backlog.take(
            sum(shares[begin : begin + self._sharers]), first, first + shares[self._rank]
        )
        self._keep_unsaved()
        self._account(consumed, keep_position=True)
        batch = batch_of(spans or [Span(self._empty, 0, 0)], sum(shares))
        if batch.num_rows:
            self._taken = time.time(), batch.event_times_s_B
        return batch

    def positions(self) -> Positions:
        """Per partition of this rank: the next message, and row in it, that is not taken."""
        begun = {unit_of(self._kafka.topic, p): Position(*place) for p, place in self._feeds.begun().items()}
        topic_id = self._feeds.topic_id
        identity = {identity_unit(self._kafka.topic, topic_id): Position(0)} if topic_id else {}
        return {**identity, **begun, **self._positions}

    def settle(self) -> None:
        """Brokers, or the directory, have all dead letters when it returns. Raises SourceError."""
        self._bad.flush()

    def saved(self, positions: Positions) -> None:
        """Commits to the consumer group what a checkpoint holds, for monitoring."""
        if not self._leads:
            return
        self._saved = positions
        offsets = {partition_of(unit, self._kafka.topic): position.offset for unit, position in positions.items()}
        self._feeds.commit({partition: offset for partition, offset in offsets.items() if partition is not None})

    def lag(self) -> Lag:
        """Messages of this rank's partitions that are not trained yet, as of about a second ago."""
        return total(self._lags())

    def meter(self, store: MetricStore) -> None:
        """Writes what only a topic has into this rank's metrics."""
        counts, topic = self.counts(), self._kafka.topic
        store.set(metrics.SOURCE_IDLE_SECONDS, self._feeds.idle_s)
        if not self._leads:
            return
        lags, now_s = self._lags(), time.time()
        self._lag_meter.report(store, lags)
        behind = {partition for partition, lag in lags.items() if lag.records}
        store.set(metrics.WATERMARK_LAG_SECONDS, self._watermarks.lag_s(behind, now_s=now_s))
        store.set(metrics.FETCH_EVENT_TIME_LAG_SECONDS, self._feeds.fetch_lag_s)
        store.set(metrics.EMIT_EVENT_TIME_LAG_SECONDS, self._emit_lag_s())
        for unit, position in self._positions.items():
            store.set(metrics.CURRENT_OFFSET, position.offset, topic=topic, partition=partition_of(unit, topic))
        for unit, position in self._saved.items():
            partition = partition_of(unit, topic)
            if partition is not None:
                store.set(metrics.COMMITTED_OFFSET, position.offset, topic=topic, partition=partition)
        for destination, number in counts.dead_letters.items():
            store.raise_to(metrics.DEAD_LETTERS, number, destination=destination)
        store.raise_to(metrics.DEAD_LETTER_FAILURES, self._bad.failed)
        store.raise_to(metrics.SOURCE_BYTES, counts.message_bytes)
        store.raise_to(metrics.LOST_RECORDS, counts.lost_messages)
        store.raise_to(metrics.SCHEMA_CHANGES, counts.schema_changes)
        if self._feeds.fingerprint:
            store.set_info(metrics.SCHEMA_INFO, fingerprint=self._feeds.fingerprint)
        store.set(metrics.ERROR_BUDGET_RATIO, self._bad.allowed_ratio)
        store.set(metrics.BAD_RECORDS_RATIO, self._bad.ratio)

    def _emit_lag_s(self) -> float | None:
        """Of the newest batch: its newest event's age as training took it."""
        if self._taken is None:
            return None
        taken_s, times = self._taken
        newest_s = float(np.fmax.reduce(times.numpy()))
        return None if isnan(newest_s) else max(0.0, taken_s - newest_s)

    def _lags(self) -> dict[int, PartitionLag]:
        read, now_s = self._feeds.messages(), time.time()
        return {
            partition: partition_lag(
                standing=standing,
                read=read.get(partition, 0),
                consumed=self._messages[partition],
                oldest_s=self._feeds.oldest_s(partition, self._next_offset(partition)),
                now_s=now_s,
            )
            for partition, standing in self._feeds.standing().items()
        }

    def _next_offset(self, partition: int) -> int:
        position = self._positions.get(unit_of(self._kafka.topic, partition))
        return 0 if position is None else position.offset

    def counts(self) -> KafkaCounts:
        """Totals since this source began; none where another rank of the node accounts."""
        counted, messages = self._feeds.counted(), sum(self._feeds.messages().values())
        if not self._leads:
            counted, messages = dict.fromkeys(counted, 0), 0
        return KafkaCounts(
            rows=self._rows,
            bad_rows=dict(self._bad.rows),
            quarantined_files={},
            lost_messages=counted["lost"],
            empty_messages=counted["empty"],
            messages=messages,
            message_bytes=counted["bytes"],
            schema_changes=counted["schema_changes"],
            dead_letters=self._bad.kept,
            buffered_bytes=self._backlog.num_bytes,
        )

    @property
    def reader_pid(self) -> int | None:
        """Process number of the first running reader."""
        return next(iter(self._feeds.pids), None)

    @property
    def reader_pids(self) -> list[int]:
        """Process numbers of all running readers of this rank."""
        return self._feeds.pids

    def close(self) -> None:
        """Stops the reader and closes the dead letters."""
        self._backlog.close()
        self._feeds.join()
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
            if not self._leads:
                continue
            self._rows += part.next_row - part.first_row
            if chunk.num_messages:
                before = chunk.messages_before(part.first_row) if part.first_row else 0
                self._messages[chunk.partition] += chunk.messages_before(part.next_row) - before
            if chunk.rows is not None:
                good = slice(*chunk.good_rows(part.first_row, part.next_row))
                self._watermarks.trained(chunk.partition, chunk.rows.event_times_s_R[good], now_s=time.time())
            self._bad.add(chunk, part.bad, rows=part.next_row - part.first_row)


def _opener(sharing: Sharing | None, options: KafkaSourceOptions) -> Callable[[ReaderOptions], OpenReader]:
    """How this rank gets its reader."""

    def opened(wanted: ReaderOptions) -> OpenReader:
        reader: OpenReader
        if sharing is None:
            reader = ReaderProcess(wanted, ring_bytes=options.ring_bytes)
        elif sharing.leads:
            reader = LeadingReader(wanted, sharing, ring_bytes=options.ring_bytes)
        else:
            reader = FollowingReader(sharing)
        pin(reader.ring, options.device)
        return reader

    return opened


def _own_part(options: ReaderOptions, part: int) -> ReaderOptions:
    """The options of the reader that has this part of the partitions."""
    start = {p: place for p, place in options.start.items() if p % options.num_parts == part}
    return replace(options, part=part, start=start)


def _own_places(start: Positions, topic: str, part: int, num_parts: int) -> tuple[dict[int, Place], bool]:
    """The places of this rank's reader among all positions, and whether there are any at all."""
    known = {p: place for unit, place in start.items() if (p := partition_of(unit, topic)) is not None}
    mine = {p: (place.offset, place.row) for p, place in known.items() if p % num_parts == part}
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
