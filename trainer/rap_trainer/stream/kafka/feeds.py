"""All readers of a rank as one: a partition belongs to one of them, so its rows keep their order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rap_trainer.stream.kafka.feed import Feed
from rap_trainer.stream.kafka.frames import Place, ReaderOptions


class Feeds:
    """Feeds that fill one backlog. An error of any of them ends it."""

    def __init__(self, options: Sequence[ReaderOptions], make: Callable[[ReaderOptions], Feed]) -> None:
        self._feeds = [make(each) for each in options]

    def start(self) -> None:
        """Starts all of them."""
        for feed in self._feeds:
            feed.start()

    def wait_started(self, seconds: float) -> None:
        """Until each has found its partitions, or has a reason why not; so long at most."""
        until_s = time.monotonic() + seconds
        for feed in self._feeds:
            feed.started.wait(max(0.0, until_s - time.monotonic()))

    def join(self) -> None:
        """Returns when all have ended; close the backlog first."""
        for feed in self._feeds:
            feed.join()

    @property
    def pids(self) -> list[int]:
        """Of running reader processes, where they are this rank's."""
        return [feed.pid for feed in self._feeds if feed.pid is not None]

    @property
    def topic_id(self) -> str:
        """Of the topic that is read; empty: unknown."""
        return next((feed.topic_id for feed in self._feeds if feed.topic_id), "")

    @property
    def fingerprint(self) -> str:
        """Of the schema of some reader's newest message; empty before the first."""
        return next((feed.fingerprint for feed in self._feeds if feed.fingerprint), "")

    @property
    def idle_s(self) -> float:
        """Time since the last message."""
        return min(feed.idle_s for feed in self._feeds)

    @property
    def fetch_lag_s(self) -> float | None:
        """Event time to the fetch of the newest record."""
        return min((feed.fetch_lag_s for feed in self._feeds if feed.fetch_lag_s is not None), default=None)

    def begun(self) -> dict[int, Place]:
        """Where each partition is read from, as far as readers told."""
        return {partition: place for feed in self._feeds for partition, place in feed.begun().items()}

    def standing(self) -> dict[int, tuple[int, int]]:
        """By partition: the offset after what was received, and the partition's end about a second ago."""
        return {partition: standing for feed in self._feeds for partition, standing in feed.standing().items()}

    def counted(self) -> dict[str, int]:
        """Totals: lost, empty, bytes, schema_changes."""
        total: Counter[str] = Counter()
        for feed in self._feeds:
            total.update(feed.counted())
        return dict(total)

    def messages(self) -> dict[int, int]:
        """Messages received by partition."""
        return {partition: number for feed in self._feeds for partition, number in feed.messages().items()}

    def oldest_s(self, partition: int, offset: int) -> float | None:
        """When the first message from `offset` on was produced; None where it is not received yet."""
        found = [feed.times.oldest_s(partition, offset) for feed in self._feeds]
        return next((time_s for time_s in found if time_s is not None), None)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Asks a reader to commit them; never blocks."""
        self._feeds[0].commit(offsets)
