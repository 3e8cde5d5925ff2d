"""Reads what the trainers export: the first rank's /metrics of each running job, a few at a time, or as others read it.

Remembers only since when the step has stood still; a restarted operator counts that anew, so it sees a stall
later, never one that is not there.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from rap_contract import metrics

from rap_operator.cache import Key
from rap_operator.observed import Subject, Telemetry
from rap_operator.pages import Fetch, Sample, Samples, http_fetch

LOG = logging.getLogger(__name__)
INTERVAL_S = 30.0
# Rewriting the summary in status costs a request: 12 a minute for all jobs together. A thousand jobs' notes about
# replanning (each once an hour) are 17 more, the lease 12: 41 a minute where all has settled, as computed.
REPORTS_PER_S = 0.2
MIN_REPORT_INTERVAL_S = 30.0
# A scrape costs 0.6 ms of CPU (23 kB, measured 2026-11-30): with many jobs each is read less often. Apart from these are
# attempts that were not seen to advance yet: a changed spec waits for that, and not longer than ten minutes.
MAX_SCRAPES_PER_S = 4.0
MAX_FIRST_SCRAPES_PER_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """The first rank of a running job."""

    key: Key
    uid: str
    attempt: int
    url: str


class Scraper:
    """Knows the latest telemetry of every running job; `on_news` is told whose has become worth a pass."""

    def __init__(
        self,
        targets: Callable[[], Iterable[Target]],
        on_news: Callable[[Key], None],
        *,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
        concurrency: int = 8,
    ) -> None:
        self._targets, self._on_news, self._clock = targets, on_news, clock
        self._fetch = fetch or http_fetch()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="scrape")
        self._lock = threading.Lock()
        self._known: dict[str, Telemetry] = {}
        self._reported_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._offered_s: dict[str, float] = {}
        self._running: dict[str, Target] = {}
        self._every_s = 0.0
        """Between two questions of a job that has made a step, as far as they are the scraper's own."""
        self._budget = 1.0
        self._budget_s = clock()
        self.count: Callable[[str], None] = lambda outcome: None

    def run(self, stopping: threading.Event, *, interval_s: float = INTERVAL_S) -> None:
        """Scrapes again and again."""
        while not stopping.wait(interval_s):
            try:
                self.scrape_some(interval_s)
            except Exception:
                LOG.exception("a round of scrapes")

    def scrape_some(self, interval_s: float = INTERVAL_S) -> None:
        """The scrapes of one interval, of those first that waited the longest; forgets the jobs that no longer run."""
        running = {target.uid: target for target in self._targets()}
        with self._lock:
            for memory in (self._known, self._reported_s, self._asked_s, self._offered_s):
                for uid in memory.keys() - running.keys():
                    del memory[uid]
            self._running = running
            self._every_s = max(interval_s, len(running) / MAX_SCRAPES_PER_S)
            now_s = self._clock()
            targets = sorted(running.values(), key=lambda target: self._asked_s.get(target.uid, -math.inf))
            first = [target for target in targets if not self._has_advanced(target)]
            lately_s = now_s - 2 * self._every_s
            others = [
                target
                for target in targets
                if self._has_advanced(target) and self._offered_s.get(target.uid, -math.inf) < lately_s
            ]
            due = first[: _share(MAX_FIRST_SCRAPES_PER_S, interval_s)] + others[: _share(MAX_SCRAPES_PER_S, interval_s)]
            self._asked_s |= dict.fromkeys((target.uid for target in due), now_s)
        for _ in self._pool.map(self._scrape, due):
            pass

    def offer(self, uid: str, attempt: int, text: str) -> None:
        """A page of the first rank's that was read for another purpose: of some it saves the scraper the reading.

        Raises ValueError as `parse` does.
        """
        now_s = self._clock()
        with self._lock:
            target = self._running.get(uid)
            if target is None or target.attempt != attempt:
                return
            self._offered_s[uid] = now_s
            if self._has_advanced(target) and now_s - self._asked_s.get(uid, -math.inf) < self._every_s / 2:
                return
            self._asked_s[uid] = now_s
        self._take(target, parse(text))

    def telemetry_of(self, subject: Subject) -> Telemetry | None:
        """The latest telemetry of a job, once with leave to report it in status when its turn has come."""
        with self._lock:
            telemetry = self._known.get(subject.uid)
            if telemetry is not None and telemetry.may_report:
                self._known[subject.uid] = replace(telemetry, may_report=False)
            return telemetry

    def _has_advanced(self, target: Target) -> bool:
        known = self._known.get(target.uid)
        return known is not None and known.attempt == target.attempt and known.has_advanced

    def _take_turn(self, uid: str) -> bool:
        now_s = self._clock()
        if now_s - self._reported_s.get(uid, -math.inf) < MIN_REPORT_INTERVAL_S:
            return False
        earned = max(now_s - self._budget_s, 0.0) * REPORTS_PER_S
        self._budget, self._budget_s = min(self._budget + earned, 10.0), now_s
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        self._reported_s[uid] = now_s
        return True

    def _scrape(self, target: Target) -> None:
        try:
            values = parse(self._fetch(target.url))
        except (OSError, ValueError) as error:
            LOG.debug("%s: %s", target.url, error)
            self.count("failed")
            values = None
        self._take(target, values)

    def _take(self, target: Target, values: Values | None) -> None:
        now_s = self._clock()
        with self._lock:
            before = self._known.get(target.uid)
            if before is not None and before.attempt != target.attempt:
                before = None
            after = before if values is None else telemetry(values, before, target, now_s)
            if after is None:
                return
            if after is before:  # one question in vain may be the network's fault
                asked_s = after.unanswered_at_s or after.asked_at_s
                after = replace(after, asked_at_s=asked_s, unanswered_at_s=now_s)
            # The first summary waits for a rate, that of a later attempt for its own; then one of nought is told too.
            rate = after.samples_per_second
            is_worth_it = bool(rate) or (rate is not None and target.uid in self._reported_s)
            may_report = values is not None and is_worth_it and self._take_turn(target.uid)
            self._known[target.uid] = replace(after, may_report=may_report or after.may_report)
        self.count("done" if values is not None else "stale")
        is_new_plan = before is not None and after.plan_hash != before.plan_hash
        is_first_step = before is not None and after.has_advanced and not before.has_advanced  # it may prove a spec
        # A pass is due for a summary, for another plan, and when the step stands still: the decision knows for how long it may.
        if may_report or is_new_plan or is_first_step or now_s - after.progress_at_s > INTERVAL_S:
            self._on_news(target.key)


def _share(per_s: float, interval_s: float) -> int:
    return max(int(per_s * interval_s), 1)


def telemetry(values: Values, before: Telemetry | None, target: Target, now_s: float) -> Telemetry | None:
    """What a scrape says, given what the one before said; None if it is another attempt's or says no step."""
    step = values.first(metrics.STEP.name)
    attempt = values.first(metrics.ATTEMPT.name)
    if step is None or (attempt is not None and int(attempt) != target.attempt):
        return before
    has_advanced = before is not None and before.step is not None and step > before.step
    is_first = before is None
    checkpoint_at_s = values.first(metrics.CHECKPOINT_TIME_SECONDS.name)
    exposed = values.first(metrics.EXPOSED_RATIO.name)
    counts = values.counts(metrics.FRESHNESS_SECONDS.name)
    freshness_s = median(counts, before.freshness_counts if before is not None else ())
    if freshness_s is None and before is not None:
        freshness_s = before.freshness_s
    return Telemetry(
        attempt=target.attempt,
        progress_at_s=now_s if is_first or has_advanced or before is None else before.progress_at_s,
        checkpoint_at_s=checkpoint_at_s if checkpoint_at_s else None,
        has_advanced=has_advanced or (before is not None and before.has_advanced),
        seen_at_s=now_s,
        asked_at_s=now_s,
        step=step,
        samples_per_second=values.first(metrics.ROWS_PER_SECOND.name),
        exposed_percent=None if exposed is None else 100.0 * exposed,
        freshness_s=freshness_s,
        freshness_counts=counts,
        lag_records=values.total(metrics.PENDING_RECORDS.name),
        plan_hash=values.label(metrics.PLAN_INFO.name, "plan"),
        may_report=before is not None and before.may_report,
    )


@dataclass(frozen=True)
class Values:
    """The samples of a scrape that the operator uses, by name."""

    samples: Mapping[str, list[Sample]]

    def first(self, name: str) -> float | None:
        """The only sample of a metric."""
        found = self.samples.get(name)
        return found[0].value if found else None

    def total(self, name: str) -> float | None:
        """The sum over a metric's series."""
        found = self.samples.get(name)
        return sum(sample.value for sample in found) if found else None

    def label(self, name: str, label: str) -> str:
        """A label of the series that is 1."""
        return next((s.labels.get(label, "") for s in self.samples.get(name, ()) if s.value == 1.0), "")

    def counts(self, name: str) -> tuple[tuple[float, float], ...]:
        """The bounds of a histogram's buckets and how many values are within each, cumulative."""
        return tuple(sorted((float(s.labels["le"]), s.value) for s in self.samples.get(f"{name}_bucket", ())))


def median(counts: tuple[tuple[float, float], ...], before: tuple[tuple[float, float], ...] = ()) -> float | None:
    """The median of what a histogram counts since `before`, interpolated in its bucket; None: nothing came."""
    if [bound for bound, _ in counts] == [bound for bound, _ in before]:
        risen = tuple((bound, late - early) for (bound, late), (_, early) in zip(counts, before, strict=True))
        counts = counts if any(number < 0 for _, number in risen) else risen
    if not counts or counts[-1][1] == 0:
        return None
    half, low_s, below = counts[-1][1] / 2, 0.0, 0.0
    for high_s, count in counts:
        if count >= half:
            if math.isinf(high_s):
                return low_s
            return low_s + (high_s - low_s) * (half - below) / max(count - below, 1e-9)
        low_s, below = high_s, count
    return None


_BUCKET = f"{metrics.FRESHNESS_SECONDS.name}_bucket"
_WANTED = Samples(
    {
        metrics.STEP.name,
        metrics.ATTEMPT.name,
        metrics.CHECKPOINT_TIME_SECONDS.name,
        metrics.EXPOSED_RATIO.name,
        metrics.ROWS_PER_SECOND.name,
        metrics.PENDING_RECORDS.name,
        metrics.PLAN_INFO.name,
        _BUCKET,
    }
)


def parse(text: str) -> Values:
    """The wanted samples of a page in Prometheus' text format; numbers that are not finite are left out.

    Raises ValueError for a number that is none, the bound of a bucket included.
    """
    samples: dict[str, list[Sample]] = {}
    for sample in _WANTED.of(text):
        if sample.name == _BUCKET:
            float(sample.labels.get("le", ""))
        if math.isfinite(sample.value):
            samples.setdefault(sample.name, []).append(sample)
    return Values(samples)
