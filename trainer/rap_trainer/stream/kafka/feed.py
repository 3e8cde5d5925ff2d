"""The training process's end of a reader: a thread that turns frames into chunks and fills the backlog.

A reader that dies is started again where the backlog ends; one that cannot go on ends the stream with its reason.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import isnan
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
from rap_contract.pod import ExitCode

from rap_trainer.stream.backlog import Backlog
from rap_trainer.stream.decode import Declared
from rap_trainer.stream.kafka.assignment import unit_of
from rap_trainer.stream.kafka.chunks import FrameDecoder, gap_chunk
from rap_trainer.stream.kafka.frames import Commit, Failed, Frame, Place, ReaderOptions, Standing, Started
from rap_trainer.stream.kafka.lag import MessageTimes
from rap_trainer.stream.kafka.reader_process import OpenReader
from rap_trainer.stream.kafka.ring import Room
from rap_trainer.stream.source import SourceError

log = logging.getLogger(__name__)

LOOK_S = 0.05  # how soon a commit or the end is passed on while no message comes
MAX_DEATHS, DEATHS_WITHIN_S = 5, 600.0  # of readers: a message that kills each of them must not do so for ever
FIRST_PAUSE_S = 0.1  # before another reader; doubles with each death
MAX_HELD_RATIO = 0.5  # of the ring that rows ready for training may occupy: the rest keeps the reader busy


class Unavailable(SourceError):
    """The brokers cannot be reached: another attempt may help."""

    exit_code = ExitCode.PEER_LOST


class Feed:
    """Fills `backlog` from `start` to `Backlog.close`."""

    def __init__(
        self,
        options: ReaderOptions,
        declared: Declared,
        backlog: Backlog,
        *,
        open_reader: Callable[[ReaderOptions], OpenReader],
        may_replace: bool = True,
    ) -> None:
        """`may_replace`: a reader that died is started again; else the attempt ends."""
        self._options, self._backlog = options, backlog
        self._open_reader, self._may_replace = open_reader, may_replace
        self._topic = options.settings.topic
        self._decoder = FrameDecoder(declared, self._topic)
        self._places: dict[int, Place] = dict(options.start)
        self._bases: dict[int, int] = {}
        self._deaths: deque[float] = deque()
        self._commit: Mapping[int, int] | None = None
        self._reader: OpenReader | None = None
        self._lock = threading.Lock()
        self._begun: dict[int, Place] = {}
        self._topic_id = options.topic_id
        self._lost = self._empty = self._bytes = 0
        self._messages: Counter[int] = Counter()
        self._received_s = time.monotonic()
        self.times = MessageTimes()
        self.fetch_lag_s: float | None = None
        """Event time to the fetch of the newest record."""
        self.started = threading.Event()
        """The first reader has found its partitions, or there is a reason why not."""
        self._thread = threading.Thread(target=self._run, name="rap-kafka-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Returns when the thread and its reader have ended; close the backlog first."""
        if self._thread.is_alive():
            self._thread.join()

    @property
    def pid(self) -> int | None:
        """Of the running reader process, where it is this rank's."""
        return None if self._reader is None else self._reader.pid

    def begun(self) -> dict[int, Place]:
        """Where each partition is read from, as far as readers told."""
        with self._lock:
            return dict(self._begun)

    @property
    def topic_id(self) -> str:
        """Of the topic that is read; empty: unknown."""
        return self._topic_id

    def standing(self) -> dict[int, tuple[int, int]]:
        """By partition: the offset after what was received, and the partition's end about a second ago."""
        reader = self._reader
        ends = {} if reader is None else reader.ends()
        return {p: (self._places[p][0], end) for p, end in ends.items() if p in self._places}

    def counted(self) -> dict[str, int]:
        """Totals: lost, empty, bytes, schema_changes."""
        with self._lock:
            return {
                "lost": self._lost,
                "empty": self._empty,
                "bytes": self._bytes,
                "schema_changes": self._decoder.schema_changes,
            }

    @property
    def fingerprint(self) -> str:
        """Of the newest message's schema; empty before the first."""
        return self._decoder.fingerprint

    def messages(self) -> dict[int, int]:
        """Messages received by partition."""
        with self._lock:
            return dict(self._messages)

    @property
    def idle_s(self) -> float:
        """Time since the last message."""
        return time.monotonic() - self._received_s

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Asks the reader to commit them; never blocks."""
        self._commit = dict(offsets)

    def _run(self) -> None:
        try:
            while not self._backlog.closed:
                self._read()
        except BaseException as error:  # handed to the training loop, which raises it
            self._backlog.end(error)
        finally:
            self.started.set()

    def _read(self) -> None:
        """One reader's life."""
        has_start = self._options.has_start or bool(self._places)
        options = replace(self._options, start=dict(self._places), has_start=has_start, topic_id=self._topic_id)
        reader = self._reader = self._open_reader(options)
        try:
            while not self._backlog.closed:
                self._send_commit(reader.link)
                if reader.link.poll(LOOK_S):
                    self._receive(reader.link.recv(), reader)
        except (EOFError, ConnectionError) as error:
            self._died(reader.ended(), error)
        finally:
            with suppress(OSError):
                self._send_commit(reader.link)
            reader.close()

    def _send_commit(self, link: Connection) -> None:
        offsets, self._commit = self._commit, None
        if offsets is not None:
            link.send(Commit(offsets=offsets))

    def _receive(self, message: Any, reader: OpenReader) -> None:
        match message:
            case Frame():
                self._put(message, reader)
            case Standing():
                self._stand(message)
            case Started():
                with self._lock:
                    for partition, place in message.places.items():
                        self._begun.setdefault(partition, place)
                    self._lost += sum(message.lost.values())
                    self._topic_id = message.topic_id
                self._places.update(message.places)
                for partition, count in message.lost.items():
                    log.warning(
                        "%s: %d messages were deleted before they were trained; they are skipped",
                        unit_of(self._topic, partition),
                        count,
                    )
                self.started.set()
            case Failed():
                raise SourceError(message.message) if message.permanent else Unavailable(message.message)

    def _put(self, frame: Frame, reader: OpenReader) -> None:
        unit = unit_of(self._topic, frame.partition)
        batch = None if frame.batch is None else _batch(frame.batch, reader)
        chunk = self._decoder.decode(frame, batch, unit=unit, unit_base=self._base(unit, frame.partition))
        del batch
        with self._lock:
            self._bytes += frame.num_bytes
            self._messages[frame.partition] += len(frame.offsets_M)
            self._received_s = time.monotonic()
            self._empty += frame.num_empty
        self.times.add(frame.partition, frame.offsets_M, frame.times_s_M)
        if chunk.rows is not None:
            newest_s = float(np.fmax.reduce(chunk.rows.event_times_s_R))
            self.fetch_lag_s = None if isnan(newest_s) else max(0.0, frame.fetched_s - newest_s)
        self._places[frame.partition] = (int(frame.offsets_M[-1]) + 1, 0)
        self._backlog.put(chunk)

    def _stand(self, message: Standing) -> None:
        for partition, offset in message.offsets.items():
            place = self._places.get(partition)
            if place is not None and offset > place[0]:
                self._places[partition] = (offset, 0)
                self._backlog.put(gap_chunk(unit_of(self._topic, partition), partition, offset))

    def _died(self, how: str, error: Exception) -> None:
        if not self._may_replace:
            hint = "hint: another attempt goes on from the checkpoint"
            raise Unavailable(f"the reader that this node's ranks share died ({how}); {hint}") from error
        now_s = time.monotonic()
        self._deaths.append(now_s)
        while now_s - self._deaths[0] > DEATHS_WITHIN_S:
            self._deaths.popleft()
        if len(self._deaths) >= MAX_DEATHS:
            at = ", ".join(f"{unit_of(self._topic, p)}:{offset}" for p, (offset, _) in sorted(self._places.items()))
            hint = "hint: see the log of this pod; memory may be short, or one of the next messages may be poison"
            raise SourceError(f"reader processes died {len(self._deaths)} times ({how}) at {at}; {hint}") from error
        log.warning("the reader process died (%s); another one goes on", how)
        self._backlog.pause(FIRST_PAUSE_S * 2 ** len(self._deaths))

    def _base(self, unit: str, partition: int) -> int:
        if partition not in self._bases:
            digest = hashlib.blake2b(unit.encode(), digest_size=8).digest()
            self._bases[partition] = int.from_bytes(digest, "big") >> 2
        return self._bases[partition]


def _batch(stored: Room | bytes, reader: OpenReader) -> pa.RecordBatch:
    """The record batch without a copy, or as a copy while much of the ring is held: training may keep it for long."""
    if isinstance(stored, bytes):
        buffer = pa.py_buffer(stored)
    else:
        buffer = reader.ring.buffer(stored)
        if reader.ring.held_ratio > MAX_HELD_RATIO:
            buffer = pa.py_buffer(buffer.to_pybytes())
    return pa.ipc.open_stream(buffer).read_next_batch()
