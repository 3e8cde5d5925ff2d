"""A frame of messages as a chunk of the backlog: decoded, and able to say which message a row belongs to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rap_trainer.batch import Position
from rap_trainer.stream.backlog import Chunk
from rap_trainer.stream.dead_letters import BadReason, BadRow
from rap_trainer.stream.decode import Declared, Decoder
from rap_trainer.stream.kafka.frames import Frame
from rap_trainer.stream.rows import Int64s, Rows
from rap_trainer.stream.source import SchemaMismatch

ROW_BITS = 20  # of a row id: a million rows a message before ids of different messages may meet


@dataclass(frozen=True, kw_only=True)
class MessageChunk(Chunk):
    """Rows of some messages of one partition; its rows are numbered over all of them, from 0."""

    partition: int
    offsets_M: Int64s
    starts_M: Int64s
    """Number of the first row of each message."""
    first_message_row: int
    """Rows of the first message that came before this chunk."""
    times_s_M: npt.NDArray[np.float64]
    num_messages: int
    """0 where it only says that offsets were passed over."""

    def position(self, row: int) -> Position:
        """Where row number `row` is; past the last one, the message after this chunk."""
        if row >= self.num_rows:
            return Position(int(self.offsets_M[-1]) + 1)
        message = self._message(row)
        return Position(int(self.offsets_M[message]), self._row(row, message))

    def messages_before(self, row: int) -> int:
        """Messages that end at or before row number `row`."""
        return self.num_messages if row >= self.num_rows else self._message(row)

    def good_rows(self, first_row: int, next_row: int) -> tuple[int, int]:
        """Which of its good rows are rows [first_row, next_row)."""
        if self.kept_rows is None:
            return first_row, next_row
        first, last = np.searchsorted(self.kept_rows, [first_row, next_row]).tolist()
        return first, last

    def num_rows_of(self, bad: BadRow) -> int:
        """Rows that a bad row stands for: all of its message where that cannot be read at all."""
        if bad.reason is not BadReason.MESSAGE:
            return 1
        ends = np.append(self.starts_M[1:], self.num_rows)
        return int(ends[self._message(bad.row)]) - bad.row

    def _message(self, row: int) -> int:
        return int(np.searchsorted(self.starts_M, row, side="right")) - 1

    def _row(self, row: int, message: int) -> int:
        return row - int(self.starts_M[message]) + (self.first_message_row if message == 0 else 0)


class FrameDecoder:
    """Frames of a topic to chunks. Messages that do not fit the job's columns are bad as a whole."""

    def __init__(self, declared: Declared, topic: str) -> None:
        self._declared, self._topic = declared, topic
        self._schema: pa.Schema | None = None
        self._decoder: Decoder | SchemaMismatch | None = None
        self.schema_changes = 0
        """How often messages came with another schema than those before."""
        self.fingerprint = ""
        """Of the newest schema; empty before the first message."""

    def decode(self, frame: Frame, batch: pa.RecordBatch | None, *, unit: str, unit_base: int) -> MessageChunk:
        """The frame's rows; `batch` is what its IPC stream holds, `unit_base` where row ids of the unit begin."""
        starts = np.cumsum(frame.num_rows_M) - frame.num_rows_M
        total = int(frame.num_rows_M.sum())
        rows: Rows | None = None
        kept: Int64s | None = np.zeros(0, np.int64)
        bad = frame.bad
        if batch is not None:
            numbers = np.arange(batch.num_rows) if frame.row_numbers is None else frame.row_numbers
            decoder = self._decoder_of(batch.schema)
            if isinstance(decoder, SchemaMismatch):
                bad = _merged(bad, _whole_messages(decoder, batch, numbers, starts))
            else:
                rows, numbers, found = self._rows(decoder, frame, batch, numbers, unit_base=unit_base)
                bad, kept = _merged(bad, found), numbers if len(numbers) < total else None
        return MessageChunk(
            unit=unit,
            order=0,
            first_row=0,
            num_rows=total,
            rows=rows,
            kept_rows=kept,
            bad=bad,
            last=False,
            partition=frame.partition,
            offsets_M=frame.offsets_M,
            starts_M=starts,
            first_message_row=frame.first_row,
            times_s_M=frame.times_s_M,
            num_messages=len(frame.offsets_M),
        )

    def _rows(
        self, decoder: Decoder, frame: Frame, batch: pa.RecordBatch, numbers: Int64s, *, unit_base: int
    ) -> tuple[Rows | None, Int64s, tuple[BadRow, ...]]:
        message_of_row = np.repeat(np.arange(len(frame.num_rows_M)), frame.num_rows_M)[numbers]
        starts = np.cumsum(frame.num_rows_M) - frame.num_rows_M
        starts[0] -= frame.first_row
        row_ids = unit_base + (frame.offsets_M[message_of_row] << ROW_BITS) + numbers - starts[message_of_row]
        decoded = decoder.decode(batch, row_ids=row_ids, event_time_s=float("nan"))
        found = tuple(replace(each, row=int(numbers[each.row])) for each in decoded.bad)
        if decoded.kept_rows is not None:
            numbers, message_of_row = numbers[decoded.kept_rows], message_of_row[decoded.kept_rows]
        rows = decoded.rows
        if self._declared.event_time.column is None:
            rows = replace(rows, event_times_s_R=frame.times_s_M[message_of_row])
        return (rows if rows.num_rows else None), numbers, found

    def _decoder_of(self, schema: pa.Schema) -> Decoder | SchemaMismatch:
        if self._decoder is None or self._schema is None or not schema.equals(self._schema):
            self.schema_changes += self._schema is not None
            self._schema, self.fingerprint = schema, fingerprint(schema)
            try:
                self._decoder = Decoder(self._declared, schema, f"topic {self._topic}")
            except SchemaMismatch as mismatch:
                self._decoder = mismatch
        return self._decoder


def fingerprint(schema: pa.Schema) -> str:
    """Equal for the same names and types, in whatever order."""
    text = "\n".join(sorted(f"{field.name}: {field.type}" for field in schema))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def empty_rows(declared: Declared, types: pa.Schema) -> Rows:
    """No rows, of the job's columns."""
    batch = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in types], schema=types)
    return Decoder(declared, types, "no rows").decode(batch, row_ids=np.zeros(0, np.int64), event_time_s=0.0).rows


def gap_chunk(unit: str, partition: int, next_offset: int) -> MessageChunk:
    """Nothing up to `next_offset`: what compaction and transactions leave."""
    return MessageChunk(
        unit=unit,
        order=0,
        first_row=0,
        num_rows=0,
        rows=None,
        kept_rows=None,
        bad=(),
        last=False,
        partition=partition,
        offsets_M=np.array([next_offset - 1], np.int64),
        starts_M=np.zeros(1, np.int64),
        first_message_row=0,
        times_s_M=np.array([np.nan]),
        num_messages=0,
    )


def _whole_messages(
    mismatch: SchemaMismatch, batch: pa.RecordBatch, numbers: Int64s, starts: Int64s
) -> tuple[BadRow, ...]:
    """One bad row a message; its payload are the message's rows as an Arrow IPC stream."""
    message_of_row = np.searchsorted(starts, numbers, side="right") - 1
    detail = " ".join(str(mismatch).split())
    found = []
    for message in np.unique(message_of_row).tolist():
        first, last = np.searchsorted(message_of_row, [message, message + 1]).tolist()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch.slice(first, last - first))
        payload = bytes(sink.getvalue())
        found.append(BadRow(row=int(starts[message]), reason=BadReason.MESSAGE, detail=detail, payload=payload))
    return tuple(found)


def _merged(some: tuple[BadRow, ...], others: tuple[BadRow, ...]) -> tuple[BadRow, ...]:
    return tuple(sorted([*some, *others], key=lambda bad: bad.row)) if some and others else some or others
