"""Names waiting for a pass: each once, one worker at a time per name, delayed and backed off.

Carries no data: a pass reads the world anew, so any number of changes is one entry.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
# The other passes of new jobs start their pods, and a server that makes those answers first passes the later: with 3,
# 200 jobs x 8 pods took 130 s until each was seen, on a machine at load 30 (2026-11-30).
FIRST_PER_OTHER = 10


class WorkQueue(Generic[K]):
    """Thread-safe. A name added while it is worked on is worked on once more afterwards."""

    def __init__(
        self,
        *,
        min_backoff_s: float = 0.05,
        max_backoff_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._min_backoff_s, self._max_backoff_s = min_backoff_s, max_backoff_s
        self._changed = threading.Condition()
        self._ready: deque[K] = deque()
        self._first: deque[K] = deque()
        self._num_taken = 0
        self._waiting: set[K] = set()
        self._goes_first: set[K] = set()
        self._working: dict[K, float] = {}
        self._again: set[K] = set()
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._sequence = 0
        self._since: dict[K, float] = {}
        self._is_closed = False
        self.on_wait: Callable[[float], object] = lambda seconds: None
        """Told how long a name waited for its pass."""
        self.on_retry: Callable[[], object] = lambda: None
        """Told of each pass wanted again after a failure."""

    def add(self, key: K, *, goes_first: bool = False) -> None:
        """Wants a pass for `key` now, and first even if it waits already among the others.

        Ten that go first are taken for each that does not, so that none starves.
        """
        with self._changed:
            self._add(key, goes_first=goes_first)

    def add_after(self, key: K, delay_s: float, *, replaces: bool = False) -> None:
        """Wants a pass in so many seconds; the earliest of several such wishes counts, unless this one replaces them."""
        with self._changed:
            due_s, known_s = self._clock() + delay_s, self._due.get(key, float("inf"))
            if known_s <= due_s and not replaces:
                return
            self._due[key] = due_s
            if due_s < known_s:  # else the entry that is there will find the later time
                self._delay(due_s, key)
                self._changed.notify()

    def add_failed(self, key: K, *, at_least_s: float = 0.0) -> float:
        """Wants a pass after a delay that doubles with each failure in a row; returns the delay."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
        self.on_retry()
        delay_s = max(min(self._min_backoff_s * 2.0 ** min(failures, 32), self._max_backoff_s), at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """The last pass went well."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self, timeout_s: float | None = None) -> K | None:
        """The next name, now being worked on until `done`; None when closed or after the time-out."""
        until_s = None if timeout_s is None else self._clock() + timeout_s
        with self._changed:
            while True:
                now_s = self._clock()
                self._promote(now_s)
                if self._is_closed:
                    return None
                if self._waiting:
                    key = self._take()
                    self.on_wait(now_s - self._since.pop(key, now_s))
                    self._working[key] = now_s
                    return key
                if until_s is not None and now_s >= until_s:
                    return None
                self._changed.wait(self._pause_s(now_s, until_s))

    def done(self, key: K) -> None:
        """The pass for `key` is over."""
        with self._changed:
            self._working.pop(key, None)
            if key in self._again:
                self._again.discard(key)
                self._add(key)
            self._changed.notify()

    def close(self) -> None:
        """Wakes all workers with None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def depth(self) -> int:
        """Names that could be worked on now."""
        with self._changed:
            return len(self._waiting)

    def oldest_s(self) -> float:
        """Seconds for which the oldest entry has waited or has been worked on."""
        with self._changed:
            now_s = self._clock()
            starts = [*self._since.values(), *self._working.values()]
            return now_s - min(starts) if starts else 0.0

    def _take(self) -> K:
        """The next name that waits; one that was moved to the front has left its old place behind."""
        self._num_taken += 1
        is_others_turn = self._num_taken % (FIRST_PER_OTHER + 1) == 0
        while True:
            lane = self._ready if not self._first or (self._ready and is_others_turn) else self._first
            key = lane.popleft()
            if key in self._waiting:
                self._waiting.discard(key)
                self._goes_first.discard(key)
                return key

    def _add(self, key: K, *, goes_first: bool = False) -> None:
        if key in self._working:
            self._again.add(key)
            return
        if key not in self._waiting:
            self._waiting.add(key)
            self._since[key] = self._clock()
            (self._first if goes_first else self._ready).append(key)
            self._changed.notify()
        elif goes_first and key not in self._goes_first:
            self._first.append(key)
        if goes_first:
            self._goes_first.add(key)

    def _promote(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            _, _, key = heapq.heappop(self._delayed)
            due_s = self._due.get(key)
            if due_s is None:
                continue
            if due_s > now_s:
                self._delay(due_s, key)
                continue
            del self._due[key]
            self._add(key)

    def _delay(self, due_s: float, key: K) -> None:
        self._sequence += 1
        heapq.heappush(self._delayed, (due_s, self._sequence, key))

    def _pause_s(self, now_s: float, until_s: float | None) -> float | None:
        ends = [self._delayed[0][0]] if self._delayed else []
        if until_s is not None:
            ends.append(until_s)
        return max(min(ends) - now_s, 0.0) if ends else None
