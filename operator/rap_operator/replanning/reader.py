"""Reads all jobs' ranks again and again, a few at a time, and keeps the last readings of each. Decides nothing.

What it remembers is lost with the process; a new one waits for a full window before anything is decided.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from rap_operator.cache import Key
from rap_operator.replanning.jobs import JobRanks
from rap_operator.replanning.sources import Source
from rap_operator.replanning.values import Reading

LOG = logging.getLogger(__name__)
CONCURRENCY = 8
MAX_READS_PER_S = 18.0  # of ranks: 0.7 ms of CPU each (23 kB, measured 2026-11-30)
# With many jobs fewer ranks of each are asked, at least the first: a longer round would be a hole in a window of 120 s.
ROUND_S = 50.0
MAX_TELLS_PER_S = 5.0  # passes cost CPU too
MAX_READINGS = 400  # of a job
PATIENCE = 8  # rounds at most that a job which does not answer is left out
TELL_EVERY_S = 15.0  # a job's pass is worth making so often; its windows are longer


@dataclass
class _Known:
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    silent: int = 0
    skip: int = 0
    told_s: float = -TELL_EVERY_S


class Reader:
    """The last readings of every job; `on_news` is told whose have come."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[JobRanks]],
        source: Source,
        on_news: Callable[[Key], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._source, self._on_news, self._clock = jobs, source, on_news, clock
        self._pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="replan-read")
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self.tell_every_s = self._news_every_s = TELL_EVERY_S

    def run(self, stopping: threading.Event, *, interval_s: float) -> None:
        """Reads all jobs again and again."""
        pause_s = interval_s
        while not stopping.wait(pause_s):
            began_s, num_reads = self._clock(), 0
            try:
                num_reads = self.read_all()
            except Exception:
                LOG.exception("a round of readings")
            pause_s = max(interval_s - (self._clock() - began_s), num_reads / MAX_READS_PER_S, 0.05)

    def read_all(self) -> int:
        """One round; gives the number of ranks that were asked. Jobs that no longer run are forgotten."""
        jobs = list(self._jobs())
        most = max(int(MAX_READS_PER_S * ROUND_S / max(len(jobs), 1)), 1)
        jobs = [job if len(job.ranks) <= most else replace(job, ranks=job.ranks[:most]) for job in jobs]
        self._news_every_s = max(self.tell_every_s, len(jobs) / MAX_TELLS_PER_S)
        uids = {job.uid for job in jobs}
        with self._lock:
            for uid in self._known.keys() - uids:
                del self._known[uid]
            due = [job for job in jobs if self._is_due(job.uid)]
        for _ in self._pool.map(self._read, due):
            pass
        return sum(len(job.ranks) for job in due)

    def readings_of(self, uid: str) -> tuple[Reading, ...]:
        """The last readings of a job, oldest first."""
        with self._lock:
            known = self._known.get(uid)
            return tuple(known.readings) if known is not None else ()

    def _is_due(self, uid: str) -> bool:
        known = self._known.setdefault(uid, _Known())
        if known.skip > 0:
            known.skip -= 1
            return False
        return True

    def _read(self, job: JobRanks) -> None:
        reading = self._source.read(job)
        now_s = self._clock()
        with self._lock:
            known = self._known.setdefault(job.uid, _Known())
            known.readings.append(reading)
            known.silent = 0 if reading.pages else known.silent + 1
            known.skip = min(2 ** min(known.silent - 1, 8) - 1, PATIENCE) if known.silent else 0
            is_news = now_s - known.told_s >= self._news_every_s or bool(reading.error)
            known.told_s = now_s if is_news else known.told_s
        if is_news:
            self._on_news(job.key)
