"""/healthz tells progress apart from an answering process; /metrics uses the contract's names and forgets jobs."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_world.world import World
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from rap_contract import metrics
from rap_operator import exposition
from rap_operator.exposition import Exposition
from rap_operator.health import HealthServer, standing_still


@pytest.fixture
def world() -> World:
    made = World()
    made.apply()
    return made


def test_a_watch_that_stands_still_is_unhealthy(world: World) -> None:
    assert standing_still(world.controller) == ""
    world.controller.reflectors[2].progress_s -= 601
    assert standing_still(world.controller).startswith("the watch of pods has stood still for 60")


def test_a_queue_that_stands_still_is_unhealthy(world: World) -> None:
    world.controller.queue.add(("jobs", "clicks"))
    assert standing_still(world.controller, max_age_s=-1).endswith("for its pass")
    assert standing_still(world.controller) == ""


@pytest.fixture
def server() -> Iterator[HealthServer]:
    made = HealthServer(0, healthy=lambda: "the watch of pods", ready=lambda: "", page=lambda: b"m 1\n")
    made.start()
    yield made
    made.stop()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_the_three_paths_answer(server: HealthServer) -> None:
    assert get(server, "/healthz") == (503, "the watch of pods\n")
    assert get(server, "/readyz") == (200, "ok\n")
    assert get(server, "/metrics") == (200, "m 1\n")
    assert get(server, "/") == (404, "not found\n")


def test_the_page_has_the_contracts_names_and_series_of_deleted_jobs_go(world: World) -> None:
    served_by = Exposition(world.controller, version="1")
    served_by.request("patch", "RAPJob", 200, 0.02)
    world.controller.queue.add_failed(("jobs", "clicks"))
    served_by.scrape("done")
    served_by.lead(is_leader=True)
    world.controller.observe_pass("done", 0.01)
    world.controller.observe_pass("refused", 0.01)
    world.edit(restartNonce=1)
    page = served_by.page().decode()
    declared = {metric.name for metric in metrics.OPERATOR}
    served = {re.split("[ {]", line)[0] for line in page.splitlines() if not line.startswith("#")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in served if not name.endswith("_created")} <= declared
    assert 'rap_operator_jobs{phase="Running"} 1.0' in page
    assert 'rap_operator_restarts_total{reason="RestartRequested"} 1.0' in page
    assert 'rap_operator_api_request_seconds_bucket{le="0.025",verb="patch"} 1.0' in page
    assert "rap_operator_queue_retries_total 1.0" in page
    assert 'rap_operator_job_condition{namespace="jobs",rapjob="clicks",type="Running"} 1.0' in page
    assert 'rap_operator_api_requests_total{code="200",verb="patch"} 1.0' in page
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for metric in (metrics.JOBS, metrics.JOB_CONDITION, metrics.WATCH_IDLE_SECONDS, metrics.QUEUE_DEPTH):
        assert (families[metric.name].type, families[metric.name].documentation) == ("gauge", metric.help)
        assert families[metric.name].samples
    world.delete()
    world.sync()
    assert 'rapjob="clicks"' not in served_by.page().decode()


@settings(deadline=None)
@given(st.dictionaries(st.tuples(st.text(max_size=9), st.text(max_size=9), st.text(max_size=9)), st.floats()))
def test_gauges_are_written_as_prometheus_own_client_writes_them(values: dict[tuple[str, ...], float]) -> None:
    gauge = GaugeMetricFamily(
        metrics.JOB_CONDITION.name, metrics.JOB_CONDITION.help, labels=metrics.JOB_CONDITION.labels
    )
    for labels, value in values.items():
        gauge.add_metric(labels, value)
    registry = CollectorRegistry()
    registry.register(Gauges(gauge))
    text = "".join(exposition._text(metrics.JOB_CONDITION, values))
    assert numbers_of(text) == numbers_of(generate_latest(registry).decode())


class Gauges(Collector):
    """One family of gauges."""

    def __init__(self, gauge: GaugeMetricFamily) -> None:
        self._gauge = gauge

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge


def numbers_of(page: str) -> list[tuple[str, str] | str]:
    """Lines, with the values as numbers: infinities and large ones may be spelled in several ways."""
    lines = [line if line.startswith("#") else line.rpartition(" ") for line in page.split("\n") if line]
    return [line if isinstance(line, str) else (line[0], repr(float(line[2]))) for line in lines]
