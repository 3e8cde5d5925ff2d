"""How far training is behind a topic, and at what rate both go: from broker offsets, per partition.

Records are messages. What is not read yet counts by offsets up to the end that readers may see; what is read and not
trained counts one by one, so gaps of compaction and transactions behind the reader are no lag.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np
import numpy.typing as npt
from rap_contract import metrics

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.rows import Int64s
from rap_trainer.stream.source import Lag, catch_up_s

Float64s = npt.NDArray[np.float64]
RATES_OVER_S = 10.0  # reports come every second, and a rate of one second jumps with each checkpoint
ALLOWED_SKEW_S = 60.0  # of a producer's clock ahead of this one


@dataclass(frozen=True, kw_only=True)
class PartitionLag:
    """One partition of this rank."""

    records: int
    """Produced and not trained."""
    seconds: float | None
    """Age of the oldest of them; 0 without one; None: unknown."""
    end: int
    """Offset that the next produced message gets, as far as readers may see."""
    consumed: int
    """Messages trained since this source began."""


def partition_lag(
    *, standing: tuple[int, int], read: int, consumed: int, oldest_s: float | None, now_s: float
) -> PartitionLag:
    """`standing`: the offset after what was received, and the end; `oldest_s`: timestamp of the oldest message not trained."""
    offset, end = standing
    records = max(0, end - offset) + max(0, read - consumed)
    seconds = 0.0 if records == 0 else None
    if records and oldest_s is not None and not isnan(oldest_s):
        seconds = max(0.0, now_s - oldest_s)
    return PartitionLag(records=records, seconds=seconds, end=end, consumed=consumed)


def total(lags: Mapping[int, PartitionLag]) -> Lag:
    """Of all partitions."""
    known = [lag.seconds for lag in lags.values() if lag.seconds is not None]
    return Lag(records=sum(lag.records for lag in lags.values()), seconds=max(known, default=None))


class LagMeter:
    """Writes lags to the metrics of one rank; remembers earlier looks for rates."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._looks: deque[tuple[float, Mapping[int, PartitionLag]]] = deque()

    def report(self, store: MetricStore, lags: Mapping[int, PartitionLag], *, now_s: float | None = None) -> None:
        """Sets gauges per partition, and the rank's rates over the last RATES_OVER_S."""
        now_s = time.monotonic() if now_s is None else now_s
        for partition, lag in lags.items():
            labels = {"topic": self._topic, "partition": partition}
            store.set(metrics.PENDING_RECORDS, lag.records, **labels)
            store.set(metrics.LAG_SECONDS, lag.seconds, **labels)
        if self._looks and now_s > self._looks[0][0]:
            then_s, before = self._looks[0]
            both = [(before[partition], lag) for partition, lag in lags.items() if partition in before]
            elapsed_s = now_s - then_s
            consumption = sum(new.consumed - old.consumed for old, new in both) / elapsed_s
            growth = sum(new.records - old.records for old, new in both) / elapsed_s
            records = sum(lag.records for lag in lags.values())
            # what came is what went and what has piled up: offsets would count the gaps of transactions, too
            store.set(metrics.ARRIVAL_RATE, max(0.0, consumption + growth))
            store.set(metrics.CONSUMPTION_RATE, consumption)
            store.set(metrics.CATCH_UP_SECONDS, catch_up_s(records, growth=growth))
        self._looks.append((now_s, dict(lags)))
        while len(self._looks) > 1 and now_s - self._looks[0][0] > RATES_OVER_S:
            self._looks.popleft()


class MessageTimes:
    """When messages that are not trained yet were produced, by partition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: dict[int, deque[tuple[Int64s, Float64s]]] = {}

    def add(self, partition: int, offsets_M: Int64s, times_s_M: Float64s) -> None:
        """Messages were received, in order."""
        with self._lock:
            self._frames.setdefault(partition, deque()).append((offsets_M, times_s_M))

    def oldest_s(self, partition: int, offset: int) -> float | None:
        """Of the first message from `offset` on; None where it is not received yet. Forgets those before it."""
        with self._lock:
            frames = self._frames.get(partition, deque())
            while frames and frames[0][0][-1] < offset:
                frames.popleft()
            if not frames:
                return None
            offsets_M, times_s_M = frames[0]
            return float(times_s_M[int(np.searchsorted(offsets_M, offset))])


class Watermarks:
    """The newest event time that is trained, by partition; times beyond now are a producer's wrong clock."""

    def __init__(self) -> None:
        self._newest_s: dict[int, float] = {}

    def trained(self, partition: int, event_times_s: Float64s, *, now_s: float) -> None:
        """Rows of a partition are trained."""
        times = event_times_s[event_times_s <= now_s + ALLOWED_SKEW_S]
        if len(times):
            newest_s = float(times.max())
            self._newest_s[partition] = max(newest_s, self._newest_s.get(partition, newest_s))

    def lag_s(self, behind: Collection[int], *, now_s: float) -> float | None:
        """Age of the time up to which all partitions are trained. One that has nothing to train holds nobody back."""
        waiting = [newest_s for partition, newest_s in self._newest_s.items() if partition in behind]
        newest_s = min(waiting) if waiting else max(self._newest_s.values(), default=None)
        return None if newest_s is None else max(0.0, now_s - newest_s)
