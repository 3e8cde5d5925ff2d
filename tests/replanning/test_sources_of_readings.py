"""What the operator reads of ranks: from their own pages and from a real Prometheus, and what it makes of broken answers."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboards.prometheus_server import PrometheusServer, Target
from rap_contract import metrics
from rap_operator.pages import Fetch, http_fetch
from rap_operator.replanning.jobs import JobRanks, Rank
from rap_operator.replanning.reader import PATIENCE, Reader
from rap_operator.replanning.sources import MAX_AGE_S, PodSource, PrometheusSource
from rap_operator.replanning.values import Reading
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.display.metrics_server import MetricsServer
from servers.processes import free_port
from servers.waiting import wait_until

NAMESPACE, POD = "clicks", "clicks-0"


def always(text: str) -> Fetch:
    """Every URL's answer."""
    return lambda url: text


class Ranks:
    """Two ranks' pages on ports of their own."""

    def __init__(self) -> None:
        self.ports = [free_port(), free_port()]
        self.stores = [MetricStore(metrics.TRAINER) for _ in self.ports]
        self.servers = [
            MetricsServer(store, port=port, address="127.0.0.1")
            for store, port in zip(self.stores, self.ports, strict=True)
        ]
        for rank, store in enumerate(self.stores):
            store.set_info(metrics.TRAINER_INFO, rapjob="clicks", rank=rank, device="cpu", runtime="eager", version="1")
            store.set(metrics.ATTEMPT, 3)
            store.set(metrics.WORLD_SIZE, 2)
            store.set_info(metrics.PLAN_INFO, plan="0123456789abcdef")
            for _ in range(4):
                store.observe(metrics.STEP_SECONDS, 0.25)
            store.inc(metrics.EXPOSED_SECONDS, 0.125)
        self.stores[0].set(metrics.MEAN_LIST_LENGTH, 20.0, group="cats")
        self.stores[0].set(metrics.WINDOW_CAPACITY_SECONDS, 0.002, window="mlp_bwd")

    def job(self) -> JobRanks:
        ranks = tuple(
            Rank(rank=rank, url=f"http://127.0.0.1:{port}/metrics", pod=POD) for rank, port in enumerate(self.ports)
        )
        return JobRanks(key=(NAMESPACE, "clicks"), uid="u", namespace=NAMESPACE, attempt=3, num_ranks=2, ranks=ranks)

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    served = Ranks()
    yield served
    served.close()


def assert_read(reading: Reading) -> None:
    """Everything that the ranks' stores hold."""
    assert reading.is_complete, reading.error
    assert not reading.wrong
    assert (reading.plan, reading.attempt) == ("0123456789abcdef", 3)
    first, second = reading.pages
    assert (first.rank, second.rank) == (0, 1)
    assert (first.steps, first.step_seconds, first.exposed_seconds) == (4, 1.0, 0.125)
    assert first.lists == {"cats": 20.0}
    assert first.capacity == {"mlp_bwd": 0.002}
    assert second.lists == {}


def test_the_ranks_own_pages_are_read(ranks: Ranks) -> None:
    assert_read(PodSource(http_fetch()).read(ranks.job()))


@pytest.mark.cluster
def test_a_real_prometheus_says_the_same_and_stale_or_missing_samples_are_no_reading(
    ranks: Ranks, prometheus_binaries: Path, tmp_path: Path
) -> None:
    labels = {"namespace": NAMESPACE, "pod": POD}
    targets = [Target(port=port, labels=labels).scrape() for port in ranks.ports]
    server = PrometheusServer(prometheus_binaries / "prometheus", tmp_path, targets)
    server.process.start()
    try:
        url = f"http://127.0.0.1:{server._port}"
        source = PrometheusSource(http_fetch(), url)
        wait_until(
            lambda: source.read(ranks.job()).is_complete, limit_s=60, what="both ranks in Prometheus", every_s=0.2
        )
        assert_read(source.read(ranks.job()))
        late = PrometheusSource(http_fetch(), url, wall_clock=lambda: time.time() + MAX_AGE_S + 1)
        assert late.read(ranks.job()).error == "Prometheus has no fresh samples of 2 ranks"
        ranks.stores[0].set(metrics.MEAN_LIST_LENGTH, math.nan, group="cats")
        wait_until(lambda: source.read(ranks.job()).wrong, limit_s=60, what="the lie in Prometheus", every_s=0.2)
    finally:
        server.process.stop()
    assert source.read(ranks.job()).error.startswith("Prometheus: ")


def test_an_answer_of_prometheus_that_is_none_is_said(ranks: Ranks) -> None:
    for answer in ("no json", "[]", '{"status": "error", "error": "busy"}', '{"status": "success", "data": {}}'):
        reading = PrometheusSource(always(answer), "http://prometheus").read(ranks.job())
        assert reading.error.startswith("Prometheus: ")
        assert reading.pages == ()


def test_a_rank_that_lies_is_named(ranks: Ranks) -> None:
    for value, words in ((math.nan, "nan"), (-1.0, "-1.0"), (math.inf, "inf")):
        ranks.stores[0].set(metrics.MEAN_LIST_LENGTH, value, group="cats")
        reading = PodSource(http_fetch()).read(ranks.job())
        assert reading.wrong == f"rank 0: list length of cats is {words}"


def test_a_rank_that_hangs_costs_its_job_a_reading_and_holds_no_other_up(ranks: Ranks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        job = ranks.job()
        hanging = JobRanks(
            key=(NAMESPACE, "hanging"),
            uid="h",
            namespace=NAMESPACE,
            attempt=1,
            num_ranks=2,
            ranks=(Rank(rank=0, url=url, pod="hanging-0"), Rank(rank=1, url=url, pod="hanging-1")),
        )
        reader = Reader(lambda: [hanging, job], PodSource(http_fetch()), lambda key: None)
        reader.read_all()
        assert_read(reader.readings_of("u")[-1])
        (broken,) = reader.readings_of("h")
        assert broken.pages == ()
        assert broken.error.startswith("rank 0 (hanging-0): ")
        for _ in range(PATIENCE):
            reader.read_all()
        assert len(reader.readings_of("u")) == PATIENCE + 1
        assert len(reader.readings_of("h")) < PATIENCE


def test_a_rank_that_flaps_gives_whole_readings_and_broken_ones_and_none_in_between(ranks: Ranks) -> None:
    source, job = PodSource(http_fetch()), ranks.job()
    found = []
    for turn in range(4):
        if turn % 2:
            ranks.servers[1].close()
        elif turn:
            ranks.servers[1] = MetricsServer(ranks.stores[1], port=ranks.ports[1], address="127.0.0.1")
        found.append(source.read(job))
    assert [reading.is_complete for reading in found] == [True, False, True, False]
    assert all("rank 1" in reading.error for reading in found[1::2])


def test_a_page_that_is_not_of_prometheus_is_no_reading(ranks: Ranks) -> None:
    for text in ("<html>", f"{metrics.ATTEMPT.name} three\n"):
        reading = PodSource(always(text)).read(ranks.job())
        assert reading.error or reading.wrong == "rank 0: no steps"
