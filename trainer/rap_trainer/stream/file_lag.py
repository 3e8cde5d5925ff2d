"""How far training is behind a directory, and at what rate both go: from sizes, without opening a file.

What waits in files that are not read is estimated by their size and the rows a byte of the files trained so far; until
one is, only the rows that are decoded count. Age is that of the oldest file with rows to train.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from rap_contract import metrics

from rap_trainer.batch import Position
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.catalogue import Record
from rap_trainer.stream.discovery import FINISHED
from rap_trainer.stream.source import Lag, catch_up_s

RATES_OVER_S = 10.0
"""Reports come every second and files seldomer."""


def file_lag(
    files: Mapping[str, Record],
    positions: Mapping[str, Position],
    *,
    trained_rows: int,
    decoded_rows: int,
    now_s: float,
) -> Lag:
    """What waits: `files` are all that were announced to this run, `decoded_rows` the rows read ahead."""
    waiting, finished_bytes, begun_rows = [], 0, 0
    for name, record in files.items():
        position = positions.get(name)
        if position is not None and position.offset == FINISHED:
            finished_bytes += record.size_bytes
            continue
        waiting.append(record)
        begun_rows += 0 if position is None else max(0, position.offset - record.first_row)
    rows = decoded_rows
    finished_rows = trained_rows - begun_rows
    if finished_bytes and finished_rows > 0:
        estimate = sum(record.size_bytes for record in waiting) * finished_rows / finished_bytes
        rows = max(decoded_rows, round(estimate) - begun_rows)
    if not rows or not waiting:
        return Lag(records=rows, seconds=0.0)
    return Lag(records=rows, seconds=max(0.0, now_s - min(record.modified_s for record in waiting)))


class FileLagMeter:
    """Writes a directory's lag to the metrics of one rank; remembers earlier looks for rates."""

    def __init__(self, directory: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._labels = {"topic": directory, "partition": ""}
        self._clock = clock
        self._looks: deque[tuple[float, int, int]] = deque()
        """Time, rows trained, rows waiting."""
        self._trained_rows, self._trained_s = 0, clock()

    def report(self, store: MetricStore, lag: Lag, *, trained_rows: int) -> None:
        """Sets the gauges, with rates over the last RATES_OVER_S."""
        now_s = self._clock()
        if trained_rows > self._trained_rows:
            self._trained_rows, self._trained_s = trained_rows, now_s
        store.set(metrics.SOURCE_IDLE_SECONDS, now_s - self._trained_s)
        store.set(metrics.PENDING_RECORDS, lag.records, **self._labels)
        store.set(metrics.LAG_SECONDS, lag.seconds, **self._labels)
        if self._looks and now_s > self._looks[0][0]:
            then_s, trained, waiting = self._looks[0]
            consumption = (trained_rows - trained) / (now_s - then_s)
            growth = (lag.records - waiting) / (now_s - then_s)
            store.set(metrics.CONSUMPTION_RATE, consumption)
            store.set(metrics.ARRIVAL_RATE, max(0.0, consumption + growth))
            store.set(metrics.CATCH_UP_SECONDS, catch_up_s(lag.records, growth=growth))
        self._looks.append((now_s, trained_rows, lag.records))
        while len(self._looks) > 1 and now_s - self._looks[0][0] > RATES_OVER_S:
            self._looks.popleft()
