"""Reads all jobs' ranks again and again, spread over a round, and keeps the last readings of each. Decides nothing.

Spread, for the pages of a thousand jobs at once would hold the interpreter, and with it every pass, for a second; and in bursts by
one thread, for a page read alone costs two to four times as much as one read after another (0.6 ms of CPU in bursts of 45, 0.9 of 9,
2.1 alone, pages of 23 kB, measured 2026-11-30). What it remembers is lost with the process; a new one waits for a full window before
anything is decided.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from rap_operator.cache import Key
from rap_operator.replanning.jobs import JobRanks
from rap_operator.replanning.sources import Source
from rap_operator.replanning.values import Reading

LOG = logging.getLogger(__name__)
CONCURRENCY = 8
TICK_S = 0.5
BURST_S = 5.0
"""From one burst of readings to the next."""
MAX_LATE_BURSTS = 2
SWITCHING_EVERY_S = 5.0
"""A job that holds one of the few places to switch is read so often, however long a round of all jobs takes."""
# Of ranks. With many jobs fewer ranks of each are asked, at least the
# first; beyond 450 jobs each is read less often, and its windows are longer (`window.py`): what moves there moves in minutes.
MAX_READS_PER_S = 9.0
ROUND_S = 50.0
MAX_TELLS_PER_S = 2.5  # passes cost CPU too, 0.6 to 1.7 ms
MAX_READINGS = 400  # of a job, and none older than it can use: one is 2.2 kB, 400 of a thousand jobs 0.9 GB; older ones then lie wider apart
MIN_KEPT = 8  # readings, however old: of a job that is read rarely they make one window
PATIENCE = 8  # rounds at most that a job which does not answer is left out
TELL_EVERY_S = 15.0  # a job's pass is worth making so often; its windows are longer


@dataclass
class _Known:
    readings: list[Reading] = field(default_factory=list)
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
        switching: Callable[[], Iterable[JobRanks]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`switching`: those of the jobs whose ranks are asked to switch."""
        self._jobs, self._source, self._on_news, self._clock = jobs, source, on_news, clock
        self._switching = switching
        self._pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="replan-read")
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._under_way: set[str] = set()
        self._round: deque[JobRanks] = deque()
        self._wanted: deque[JobRanks] = deque()
        self._num_reading = 0
        self._round_s = self._hastened_s = self._burst_s = clock()
        self._budget = 0.0
        self.tell_every_s = self._news_every_s = TELL_EVERY_S

    def run(self, stopping: threading.Event, *, interval_s: float) -> None:
        """Reads all jobs again and again."""
        tick_s = min(TICK_S, interval_s)
        while not stopping.wait(tick_s):
            try:
                self.turn(interval_s, tick_s)
            except Exception:
                LOG.exception("a turn of readings")

    def turn(self, interval_s: float, tick_s: float) -> None:
        """Begins the reads that are due: of the jobs that switch, and of the next ones of the round."""
        now_s = self._clock()
        if now_s - self._hastened_s >= min(SWITCHING_EVERY_S, interval_s):
            self._hastened_s = now_s
            for job in self._switching():
                self._want(job)
        burst_s = max(min(BURST_S, interval_s), tick_s)
        if not self._round and now_s - self._round_s >= interval_s:
            self._round_s = now_s
            self._round.extend(self._due())
            self._burst_s = max(self._burst_s, now_s - burst_s)  # begins at once, with no more than one burst
        if self._round and now_s - self._burst_s >= burst_s:
            # By the time that has passed: turns come late on a busy machine, and a round that takes longer is a hole in windows.
            self._budget += MAX_READS_PER_S * min(now_s - self._burst_s, MAX_LATE_BURSTS * burst_s)
            self._burst_s = now_s
            while self._round and self._budget > 0:
                job = self._round.popleft()
                self._budget -= len(job.ranks)
                self._want(job)
            self._budget = min(self._budget, 0.0)  # what is left over is no leave to read more at once, a debt is paid
        with self._lock:
            if not self._wanted or self._num_reading == CONCURRENCY:
                return
            self._num_reading += 1  # one reads all, and another helps at each turn that finds some still waiting
        self._pool.submit(self._read_wanted)

    def read_all(self) -> None:
        """One round at once, to its end."""
        jobs = self._due()
        for job, is_news in zip(jobs, self._pool.map(self._read, jobs), strict=True):
            if is_news:
                self._on_news(job.key)

    def _due(self) -> list[JobRanks]:
        """The jobs of a round. Those that no longer run are forgotten."""
        jobs = list(self._jobs())
        most = max(int(MAX_READS_PER_S * ROUND_S / max(len(jobs), 1)), 1)
        jobs = [job if len(job.ranks) <= most else replace(job, ranks=job.ranks[:most]) for job in jobs]
        self._news_every_s = max(self.tell_every_s, len(jobs) / MAX_TELLS_PER_S)
        uids = {job.uid for job in jobs}
        with self._lock:
            for uid in self._known.keys() - uids:
                del self._known[uid]
            return [job for job in jobs if self._is_due(job.uid)]

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

    def _want(self, job: JobRanks) -> None:
        """Unless the job's last read still goes on."""
        with self._lock:
            if job.uid not in self._under_way:
                self._under_way.add(job.uid)
                self._wanted.append(job)

    def _read_wanted(self) -> None:
        """Until none waits; tells the news when all is read, so that passes do not cut in."""
        news: list[Key] = []
        while job := self._next():
            try:
                if self._read(job):
                    news.append(job.key)
            except Exception:
                LOG.exception("reading %s/%s", *job.key)
            finally:
                with self._lock:
                    self._under_way.discard(job.uid)
        for key in news:
            self._on_news(key)

    def _next(self) -> JobRanks | None:
        with self._lock:
            if self._wanted:
                return self._wanted.popleft()
            self._num_reading -= 1
            return None

    def _read(self, job: JobRanks) -> bool:
        """Whether it is worth a pass."""
        reading = self._source.read(job)
        now_s = self._clock()
        with self._lock:
            known = self._known.setdefault(job.uid, _Known())
            is_other = not known.readings or known.readings[-1].plan != reading.plan
            known.readings.append(reading)
            while len(known.readings) > MIN_KEPT and reading.at_s - known.readings[0].at_s > job.keep_s:
                del known.readings[0]
            if len(known.readings) > MAX_READINGS:
                del known.readings[least_needed(known.readings)]
            known.silent = 0 if reading.pages else known.silent + 1
            known.skip = min(2 ** min(known.silent - 1, 8) - 1, PATIENCE) if known.silent else 0
            is_news = now_s - known.told_s >= self._news_every_s or is_other or job.is_switching or bool(reading.error)
            known.told_s = now_s if is_news else known.told_s
        return is_news


def least_needed(readings: Sequence[Reading]) -> int:
    """Which one to leave out so that long windows keep their length: of the older half the one whose neighbours are closest.

    The last of a plan stays, for what a switch cost is counted from it; the oldest goes where there is nothing else.
    """
    older = range(1, len(readings) // 2)
    between = [number for number in older if readings[number].plan == readings[number + 1].plan]
    return min(between, key=lambda number: readings[number + 1].at_s - readings[number - 1].at_s, default=0)
