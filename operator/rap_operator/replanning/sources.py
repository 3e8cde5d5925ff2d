"""Where readings come from: the pods themselves, or a Prometheus that scrapes them. One interface, two ways."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlencode

from rap_contract import metrics

from rap_operator.pages import Fetch, Sample
from rap_operator.replanning.jobs import JobRanks
from rap_operator.replanning.page import WANTED, rank_page, samples_of
from rap_operator.replanning.values import RankPage, Reading

MAX_AGE_S = 60.0
"""Of a Prometheus' newest sample: twice its usual interval."""


class Source(Protocol):
    """Reads the metrics of a job's ranks."""

    def read(self, job: JobRanks) -> Reading:
        """A reading; what went wrong is in its `error`. Never raises, never waits for long."""


class PodSource:
    """Asks each rank."""

    def __init__(self, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        self.on_first: Callable[[str, int, str], None] = lambda uid, attempt, text: None
        """Told what the first rank of a job said to whoever asked for this attempt."""

    def read(self, job: JobRanks) -> Reading:
        pages: list[RankPage] = []
        error = ""
        for rank in job.ranks:
            try:
                text = self._fetch(rank.url)
                pages.append(rank_page(rank.rank, samples_of(text)))
                if rank.rank == 0:
                    self.on_first(job.uid, job.attempt, text)
            except (OSError, ValueError) as reason:
                error = f"rank {rank.rank} ({rank.pod}): {_short(reason)}"
                break  # one that is missing makes the reading useless; a hanging job must not hold the others up
        return Reading(at_s=self._clock(), pages=tuple(pages), num_asked=len(job.ranks), error=error)


class PrometheusSource:
    """Asks a Prometheus that scrapes the pods, with the labels `namespace` and `pod` as its operator sets them."""

    def __init__(
        self,
        fetch: Fetch,
        url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fetch, self._url = fetch, url.rstrip("/")
        self._clock, self._wall_clock = clock, wall_clock

    def read(self, job: JobRanks) -> Reading:
        try:
            answer = json.loads(self._fetch(f"{self._url}/api/v1/query?{urlencode({'query': query_of(job)})}"))
            if not isinstance(answer, dict) or answer.get("status") != "success":
                raise ValueError(f"Prometheus answers {str(answer)[:200]}")
            pages = self._pages(job, answer["data"]["result"])
        except (OSError, ValueError, KeyError, TypeError) as reason:
            return Reading(at_s=self._clock(), num_asked=len(job.ranks), error=f"Prometheus: {_short(reason)}")
        missing = len(job.ranks) - len(pages)
        error = f"Prometheus has no fresh samples of {missing} ranks" if missing else ""
        return Reading(at_s=self._clock(), pages=tuple(pages), num_asked=len(job.ranks), error=error)

    def _pages(self, job: JobRanks, series: list[dict[str, Any]]) -> list[RankPage]:
        by_instance: dict[str, list[Sample]] = {}
        ranks: dict[str, int] = {}
        now_s = self._wall_clock()
        for one in series:
            labels = dict(one["metric"])
            time_s, text = one["values"][-1]
            if now_s - float(time_s) > MAX_AGE_S:
                continue
            name, instance = labels.pop("__name__"), labels.get("instance", "")
            value = float(text)
            if name == metrics.TRAINER_INFO.name and str(labels.get("rank", "")).isdigit():
                ranks[instance] = int(labels["rank"])
            by_instance.setdefault(instance, []).append(Sample(name, labels, value))
        wanted = {rank.rank for rank in job.ranks}
        pages = [rank_page(rank, by_instance[instance]) for instance, rank in ranks.items() if rank in wanted]
        return sorted(pages, key=lambda page: page.rank)


def query_of(job: JobRanks) -> str:
    """The newest minute of everything that is read of a job's pods, raw: with the times at which it was scraped."""
    names = "|".join(sorted({*WANTED, metrics.TRAINER_INFO.name}))
    pods = "|".join(sorted({rank.pod for rank in job.ranks}))
    return f'{{__name__=~"{names}",namespace="{job.namespace}",pod=~"{pods}"}}[{math.ceil(MAX_AGE_S)}s]'


def _short(reason: BaseException) -> str:
    return (str(reason).strip() or type(reason).__name__).partition("\n")[0][:300]
