"""The reader process: polls one consumer, parses messages and passes record batches through the ring.

It owns the only consumer of its rank, or of all ranks of a node that share few partitions, so that checksums,
decompression and parsing take no time of training processes. It imports no torch. It ends when told to, when its parent
is gone, or with a `Failed`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, LogTruncationError, OffsetOutOfRangeError

from rap_trainer.stream.kafka.arrow_messages import ArrowMessages
from rap_trainer.stream.kafka.client import client_options, require_fast_checksums
from rap_trainer.stream.kafka.committer import Committer
from rap_trainer.stream.kafka.ends import EndsWatch
from rap_trainer.stream.kafka.fast_fetch import speed_up
from rap_trainer.stream.kafka.frames import Commit, Failed, Frame, Place, ReaderOptions, Standing, Started
from rap_trainer.stream.kafka.messages import Parsed, Parser, without_first_rows
from rap_trainer.stream.kafka.ring import RingWriter, Room
from rap_trainer.stream.kafka.start import StartError, open_at, owned, require_same_topic, topic_identity
from rap_trainer.stream.kafka.text_messages import csv_messages, json_messages
from rap_trainer.stream.source import SourceError

POLL_MS = 100  # how soon a command or the parent's end is noticed while no message comes
POSITION_MS = 1000  # known at once, but while brokers do not say where a partition begins
STANDING_EVERY_S = 1.0  # as often as training reports
FRAME_BYTES = 8 << 20  # messages of one frame: large enough for vectorised work, small beside the ring
RING_WAIT_S = 0.002  # while the ring is full: training is behind by a full ring then
RING_PATIENCE_S = 0.1  # rows ready for training never hold all slots, but may leave no two neighbours free
RETRY_S = 0.2
LAST_COMMIT_S = 2.0  # beyond it nobody waits for what is for monitoring alone
MAX_RECORDS = 20_000  # of one poll; bytes bound it first
FETCH_BYTES = 32 << 20  # of one answer of a broker
LINGER_BYTES, LINGER_MS = 1 << 20, 100
"""A broker answers with so much, or with what it has after so long: each takes 9 ms of CPU of broker, reader and
rank together, whether it brings one message of 160 rows or four (here, 2026-11-30), and 0.1 s of a row's age is little beside a goal of 2 s."""


class ParentGone(Exception):
    """Nobody reads any more, or the reader is told to end."""


class Reader:
    """The reading of one rank or of a node's ranks, from the first look at the topic to the end."""

    def __init__(self, options: ReaderOptions, links: Sequence[Connection], news: Connection) -> None:
        self._options, self._links, self._link = options, links, links[0]
        self._ring = RingWriter(options.ring_file, readers=len(links))
        self._topic = options.settings.topic
        self._parent = os.getppid()
        self._parser = _parser(options)
        client = client_options(options.settings.servers, options.settings.login)
        self._committer = Committer(self._topic, options.group, client)
        consumer_options = {**client, **_consumer_options(options)}
        self._consumer = KafkaConsumer(**consumer_options)
        self._ends = EndsWatch(self._topic, consumer_options, client, news)
        self._client, self._topic_id = client, options.topic_id
        self._skip_rows: dict[int, Place] = {}
        self._stood_s = 0.0

    def run(self) -> None:
        """Reads for ever. Raises ParentGone, StartError, KafkaError."""
        self._begin(self._wait_for_topic(), wanted=self._options.start, new_ones=self._options.has_start)
        while True:
            self._obey()
            require_same_topic(self._topic, wanted=self._topic_id, found=self._ends.identity)
            try:
                self._read()
            except OffsetOutOfRangeError as error:
                self._reopen({key.partition: offset for key, offset in error.args[0].items()})
            except KafkaError as error:
                if not error.retriable:
                    self._check_topic()  # most of what cannot go on is a topic made anew
                    raise
                self._pause(RETRY_S)

    def _check_topic(self) -> None:
        found = topic_identity(self._topic, self._client)
        require_same_topic(self._topic, wanted=self._topic_id, found=found)
        self._topic_id = found or self._topic_id

    def _read(self) -> None:
        polled = self._consumer.poll(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
        for key, records in polled.items():
            self._pass_on(key.partition, records)
        self._discover()
        if time.monotonic() - self._stood_s >= STANDING_EVERY_S:
            self._say_standing()

    def finish(self) -> None:
        """The last commit."""
        self._committer.finish(LAST_COMMIT_S)

    def _wait_for_topic(self) -> list[int]:
        until_s = time.monotonic() + self._options.wait_s
        while not (partitions := owned(self._consumer, self._options)):
            if time.monotonic() >= until_s:
                hint = "hint: create it, or correct spec.source.kafka.topic, or let this user describe and read it"
                raise StartError(f"topic {self._topic} is not there; {hint}")
            self._pause(RETRY_S)
        return partitions

    def _begin(self, partitions: Sequence[int], *, wanted: Mapping[int, Place], new_ones: bool) -> None:
        self._check_topic()
        start = open_at(self._consumer, self._options, partitions, wanted=wanted, new_ones=new_ones)
        assigned = self._consumer.assignment() | {TopicPartition(self._topic, p) for p in partitions}
        positions = {key: self._position(key) for key in self._consumer.assignment()}
        self._consumer.assign(sorted(assigned))
        for key, offset in positions.items():
            if offset is not None:
                self._consumer.seek(key, offset)
        for partition, (offset, row) in start.places.items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)
            if row:
                self._skip_rows[partition] = (offset, row)
        self._ends.watch(key.partition for key in self._consumer.assignment())
        self._tell(Started(places=start.places, lost=start.lost, topic_id=self._topic_id))

    def _reopen(self, offsets: Mapping[int, int]) -> None:
        """What was to be read next is not there any more: lost by retention, or the topic is another one."""
        wanted = {p: self._skip_rows.pop(p, (offset, 0)) for p, offset in offsets.items()}
        self._begin(list(offsets), wanted=wanted, new_ones=True)

    def _discover(self) -> None:
        known = {key.partition for key in self._consumer.assignment()}
        added = [partition for partition in owned(self._consumer, self._options) if partition not in known]
        if added:
            self._begin(added, wanted={}, new_ones=True)

    def _pass_on(self, partition: int, records: Sequence[Any]) -> None:
        skip = self._skip_rows.pop(partition, None)
        if skip is not None and records[0].offset == skip[0]:
            self._send(partition, records[:1], skip[1])
            records = records[1:]
        for group in _groups(records):
            self._send(partition, group, 0)

    def _send(self, partition: int, records: Sequence[Any], first_row: int) -> None:
        done, fetched_s = 0, time.time()
        for whole in self._parser.parse([record.value for record in records]):
            parsed = without_first_rows(whole, first_row)
            some = records[done : done + len(parsed.num_rows)]
            done += len(some)
            self._tell(
                Frame(
                    partition=partition,
                    offsets_M=np.array([record.offset for record in some], np.int64),
                    times_s_M=np.array([r.timestamp / 1e3 if (r.timestamp or -1) >= 0 else np.nan for r in some]),
                    num_rows_M=np.array(parsed.num_rows, np.int64),
                    first_row=first_row,
                    row_numbers=parsed.row_numbers,
                    bad=parsed.bad,
                    batch=self._stored(parsed),
                    num_bytes=sum(len(record.value or b"") for record in some),
                    num_empty=sum(not record.value for record in some),
                    fetched_s=fetched_s,
                )
            )

    def _tell(self, message: Started | Frame | Standing) -> None:
        for link in self._links:
            link.send(message)

    def _stored(self, parsed: Parsed) -> Room | bytes | None:
        """The record batch in the ring, once there is room; what finds none for long goes by the link, which blocks."""
        if parsed.batch is None:
            return None
        counted = pa.MockOutputStream()
        _write(counted, parsed.batch)
        size = counted.size()
        room = self._room(size)
        if room is None:
            sink = pa.BufferOutputStream()
            _write(sink, parsed.batch)
            return bytes(sink.getvalue())
        memory = self._ring.view(room)
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(memory)), parsed.batch)
        return room

    def _room(self, size: int) -> Room | None:
        if size > self._ring.capacity // 4:
            return None
        until_s = time.monotonic() + RING_PATIENCE_S
        while (room := self._ring.reserve(size)) is None and time.monotonic() < until_s:
            self._pause(RING_WAIT_S)
        return room

    def _say_standing(self) -> None:
        self._stood_s = time.monotonic()
        offsets = {key.partition: self._position(key) for key in self._consumer.assignment()}
        self._tell(Standing(offsets={p: offset for p, offset in offsets.items() if offset is not None}))

    def _position(self, key: TopicPartition) -> int | None:
        """The next offset; None where there is none: what was to be read is out of range."""
        offset: int | None = self._consumer.position(key, timeout_ms=POSITION_MS)
        return offset

    def _obey(self) -> None:
        self._pause(0.0)

    def _pause(self, seconds: float) -> None:
        """Waits, but hears commands. Raises ParentGone."""
        if os.getppid() != self._parent:
            raise ParentGone
        try:
            if self._link.poll(seconds):
                command = self._link.recv()
                if not isinstance(command, Commit):
                    raise ParentGone
                self._committer.commit(command.offsets)
        except (EOFError, OSError) as error:
            raise ParentGone from error


def _groups(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    begin = size = 0
    for index, record in enumerate(records):
        size += len(record.value or b"")
        if size >= FRAME_BYTES:
            yield records[begin : index + 1]
            begin, size = index + 1, 0
    if begin < len(records):
        yield records[begin:]


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _parser(options: ReaderOptions) -> Parser:
    match options.settings.format:
        case "arrow":
            return ArrowMessages(options.types.names)
        case "json":
            return json_messages(options.types)
        case "csv" | "tsv":
            return csv_messages(options.settings.text, options.types)


def _consumer_options(options: ReaderOptions) -> dict[str, Any]:
    return {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed" if options.settings.read_committed else "read_uncommitted",
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 1000 * options.settings.discovery_s,
        "bootstrap_timeout_ms": int(1000 * options.wait_s),
        "reconnect_backoff_max_ms": 1000,
        "fetch_max_bytes": FETCH_BYTES,
        "fetch_min_bytes": LINGER_BYTES,
        "fetch_max_wait_ms": LINGER_MS,
        "max_partition_fetch_bytes": FRAME_BYTES,
        "client_id": "rap",
    }


def failure_of(error: Exception, options: ReaderOptions) -> Failed:
    """What to tell the parent, with the place and a hint; never a secret."""
    where = f"topic {options.settings.topic} at {','.join(options.settings.servers)}"
    name, text = type(error).__name__, str(error).strip().partition("\n")[0]
    if isinstance(error, StartError | SourceError):
        return Failed(message=str(error))
    if isinstance(error, LogTruncationError):
        hint = "hint: a broker lost messages that were read already; raise spec.restartNonce to train anew"
    elif isinstance(error, CorruptRecordError):
        hint = "hint: the broker's log is damaged; move past it, or restore the partition from a replica"
    elif "Authori" in name or "Authentication" in name or "Sasl" in name:
        hint = "hint: see spec.source.kafka.auth and the user's rights to describe and read the topic"
    elif isinstance(error, KafkaError) and (
        getattr(error, "retriable", False) or "Bootstrap" in name or "Brokers" in name
    ):
        hint = "hint: see spec.source.kafka.bootstrapServers and auth, and whether the brokers run"
        return Failed(message=f"{where}: {name}: {text}; {hint}", permanent=False)
    else:
        hint = "hint: see the log of this pod"
    return Failed(message=f"{where}: {name}: {text}; {hint}")


def main() -> None:
    """The process; its arguments are the file numbers of its ends of the news of ends and of the links, one a rank."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group: the parent ends in order, and then this
        signal.signal(number, signal.SIG_IGN)
    news, *links = (Connection(int(number)) for number in sys.argv[1:])
    options: ReaderOptions = links[0].recv()
    reader: Reader | None = None
    try:
        require_fast_checksums()
        speed_up()
        reader = Reader(options, links, news)
        reader.run()
    except (ParentGone, BrokenPipeError, ConnectionResetError):
        if reader is not None:
            reader.finish()
    except (KafkaError, StartError, SourceError) as error:
        failure = failure_of(error, options)
        for link in links:
            with suppress(OSError):
                link.send(failure)
    os._exit(0)  # kafka-python's IO thread may take long to end, and nothing is left to keep


if __name__ == "__main__":
    main()
