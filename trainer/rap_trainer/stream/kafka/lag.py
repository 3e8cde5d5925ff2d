"""How far training is behind a topic, and at what rate both go: from broker offsets, per partition.

Records are messages. What is not read yet counts by offsets up to the end that readers may see; what is read and not
trained counts one by one, so gaps of compaction and transactions behind the reader are no lag.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan

from rap_contract import metrics

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.source import Lag


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
    """Writes lags to the metrics of one rank; remembers the look before for rates."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._before: tuple[float, Mapping[int, PartitionLag]] | None = None

    def report(self, store: MetricStore, lags: Mapping[int, PartitionLag], *, now_s: float | None = None) -> None:
        """Sets gauges per partition, and the rank's rates since the report before."""
        now_s = time.monotonic() if now_s is None else now_s
        for partition, lag in lags.items():
            labels = {"topic": self._topic, "partition": partition}
            store.set(metrics.PENDING_RECORDS, lag.records, **labels)
            store.set(metrics.LAG_SECONDS, lag.seconds, **labels)
        if self._before is not None and now_s > self._before[0]:
            before_s, before = self._before
            both = [(before[partition], lag) for partition, lag in lags.items() if partition in before]
            elapsed_s = now_s - before_s
            arrival = sum(new.end - old.end for old, new in both) / elapsed_s
            consumption = sum(new.consumed - old.consumed for old, new in both) / elapsed_s
            records = sum(lag.records for lag in lags.values())
            store.set(metrics.ARRIVAL_RATE, arrival)
            store.set(metrics.CONSUMPTION_RATE, consumption)
            store.set(metrics.CATCH_UP_SECONDS, catch_up_s(records, arrival=arrival, consumption=consumption))
        self._before = now_s, dict(lags)


def catch_up_s(records: int, *, arrival: float, consumption: float) -> float:
    """Seconds until the lag is gone at these rates (records a second); infinite if it grows."""
    if records == 0:
        return 0.0
    return records / (consumption - arrival) if consumption > arrival else inf
