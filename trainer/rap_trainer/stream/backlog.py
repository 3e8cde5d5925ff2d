"""Decoded rows between the reader thread and the training loop: bounded in bytes, cut without copies.

It knows rows and where they came from; it knows neither files nor ranks.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from rap_trainer.stream.dead_letters import BadRow
from rap_trainer.stream.rows import Int64s, Rows, Span


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A decoded run of rows of one unit."""

    unit: str
    order: int
    first_row: int
    num_rows: int
    """Rows of the unit it stands for, the bad ones included."""
    rows: Rows | None
    """Good rows; None: not one."""
    kept_rows: Int64s | None
    """Number in the unit of each good row; None: all are good."""
    bad: tuple[BadRow, ...]
    """`row` counts in the unit."""
    last: bool
    """The unit ends with it."""

    @property
    def num_good(self) -> int:
        return 0 if self.rows is None else self.rows.num_rows

    @property
    def num_bytes(self) -> int:
        return 0 if self.rows is None else self.rows.num_bytes

    def row_after(self, num_good: int) -> int:
        """Number in the unit of the first row that is still to come once `num_good` good rows are consumed."""
        if num_good >= self.num_good:
            return self.first_row + self.num_rows
        return self.first_row + num_good if self.kept_rows is None else int(self.kept_rows[num_good])


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """Rows of a unit that left the backlog: [first_row, next_row) with the bad ones among them."""

    chunk: Chunk
    first_row: int
    next_row: int

    @property
    def bad(self) -> list[BadRow]:
        return [bad for bad in self.chunk.bad if self.first_row <= bad.row < self.next_row]

    @property
    def finished(self) -> bool:
        return self.chunk.last and self.next_row == self.chunk.first_row + self.chunk.num_rows


class Backlog:
    """One thread puts, another takes. At least `min_rows` good rows fit, a full step of all ranks, however large they are."""

    def __init__(self, *, limit_bytes: int, min_rows: int) -> None:
        self._limit_bytes, self.min_rows = limit_bytes, min_rows
        self._chunks: deque[Chunk] = deque()
        self._head_taken = 0  # good rows of the first chunk that are gone
        self._good_rows = 0
        self._num_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, chunk: Chunk) -> bool:
        """Adds a chunk once there is room; False when the backlog is closed."""
        with self._changed:
            while not self._closed and self._num_bytes >= self._limit_bytes and self._good_rows >= self.min_rows:
                self._changed.wait()
            if self._closed:
                return False
            self._chunks.append(chunk)
            self._good_rows += chunk.num_good
            self._num_bytes += chunk.num_bytes
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Nothing will be put any more; an error is raised to the consumer after the rows before it."""
        with self._changed:
            self._ended, self._error = True, error

    def close(self) -> None:
        """Wakes the reader and drops what is left."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """The reader's sleep between two looks; ends early when the backlog is closed."""
        with self._changed:
            if not self._closed:
                self._changed.wait(seconds)

    def available(self) -> tuple[int, bool, BaseException | None]:
        """Good rows, whether nothing comes after them, and the error that ended the stream."""
        with self._changed:
            return self._good_rows, self._ended, self._error

    def take_bad_head(self) -> list[Consumed]:
        """Removes chunks without a good row from the front."""
        gone: list[Consumed] = []
        with self._changed:
            while self._chunks and self._chunks[0].num_good == 0:
                chunk = self._chunks.popleft()
                gone.append(Consumed(chunk=chunk, first_row=chunk.first_row, next_row=chunk.row_after(0)))
        return gone

    def take(self, num_rows: int, first: int, last: int) -> tuple[list[Span], list[Consumed]]:
        """Removes `num_rows` good rows; gives where rows [first, last) of them are."""
        mine: list[Span] = []
        consumed: list[Consumed] = []
        with self._changed:
            done = 0
            while done < num_rows:
                chunk, start = self._chunks[0], self._head_taken
                stop = min(chunk.num_good, start + num_rows - done)
                low, high = max(first - done, 0) + start, min(last - done + start, stop)
                if low < high:
                    assert chunk.rows is not None
                    mine.append(Span(chunk.rows, low, high))
                before = chunk.first_row if start == 0 else chunk.row_after(start)
                consumed.append(Consumed(chunk=chunk, first_row=before, next_row=chunk.row_after(stop)))
                done += stop - start
                self._head_taken = stop
                if stop == chunk.num_good:
                    self._chunks.popleft()
                    self._head_taken = 0
                    self._num_bytes -= chunk.num_bytes
            self._good_rows -= num_rows
            self._changed.notify_all()
        return mine, consumed
