"""Prometheus metrics of a rank over HTTP."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest
from display.story_samples import BARE, FULL, OUTCOME, RUN
from prometheus_client.parser import text_string_to_metric_families
from rap_contract import metrics
from rap_contract.problem import InvalidDocument
from rap_trainer.display import Gauges, MetricsServer, MetricStore
from servers.processes import free_port

LOOPBACK = "127.0.0.1"


def scrape(port: int) -> dict[str, float]:
    """Values by name and labels, as one string."""
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_shows_what_the_panel_shows() -> None:
    store, port = MetricStore(metrics.TRAINER), free_port()
    server = MetricsServer(store, port=port, address=LOOPBACK)
    gauges = Gauges(store, rank=0, version="0.1.0")
    try:
        gauges.start(RUN)
        gauges.update(BARE)
        assert f"{metrics.AUC.name}['window']" not in scrape(port), "unknown is absent, not 0"
        gauges.update(FULL)
        found = scrape(port)
        assert found[f"{metrics.NORMALIZED_ENTROPY.name}['window']"] == 0.8123
        assert found[f"{metrics.NORMALIZED_ENTROPY.name}['life']"] == 0.8341
        assert found[f"{metrics.ROWS_PER_SECOND.name}[]"] == 41_234.5
        assert found[f"{metrics.STEP.name}[]"] == 1234
        assert found[f"{metrics.HOST_MEMORY_BYTES.name}[]"] > 2**20
        assert found[f"{metrics.CHECKPOINT_AGE_SECONDS.name}[]"] == 12.0
        assert found[f"{metrics.CHECKPOINT_TIME_SECONDS.name}[]"] == FULL.time_s - 12.0
        assert found[f"{metrics.TRAINER_INFO.name}{sorted(['clicks', '0', 'cpu', 'eager', '0.1.0'])}"] == 1.0
        gauges.update(BARE)
        gauges.finish(OUTCOME)
        assert scrape(port)[f"{metrics.STEP.name}[]"] == 1234
    finally:
        server.close()


def test_other_ranks_do_not_repeat_the_numbers_of_the_job() -> None:
    store, port = MetricStore(metrics.TRAINER), free_port()
    server = MetricsServer(store, port=port, address=LOOPBACK)
    try:
        gauges = Gauges(store, rank=1, version="0.1.0")
        gauges.start(RUN)
        gauges.update(FULL)
        found = scrape(port)
        assert found[f"{metrics.STEP.name}[]"] == 1234
        assert f"{metrics.ROWS_PER_SECOND.name}[]" not in found
        assert f"{metrics.AUC.name}['window']" not in found
    finally:
        server.close()


def test_a_taken_port_is_a_clear_error_with_the_port_and_a_hint() -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind((LOOPBACK, port))
        other.listen()
        with pytest.raises(InvalidDocument) as raised:
            MetricsServer(MetricStore(metrics.TRAINER), port=port, address=LOOPBACK, patience_s=0.0)
    text = str(raised.value)
    assert f"spec.trainer.metricsPort: port {port} for Prometheus metrics is taken by another process" in text
    assert "hint: set spec.trainer.metricsPort to a free port, or to 0 for no metrics" in text


def test_a_port_that_a_dying_predecessor_still_holds_is_waited_for() -> None:
    port = free_port()
    other = socket.socket()
    other.bind((LOOPBACK, port))
    other.listen()
    threading.Timer(0.2, other.close).start()
    server = MetricsServer(MetricStore(metrics.TRAINER), port=port, address=LOOPBACK, patience_s=60.0)
    assert scrape(port)
    server.close()


def test_a_port_beyond_the_last_is_a_clear_error() -> None:
    with pytest.raises(InvalidDocument, match="port 65540 for Prometheus metrics is no port"):
        MetricsServer(MetricStore(metrics.TRAINER), port=65540, address=LOOPBACK)


def test_port_0_serves_nothing() -> None:
    MetricsServer(MetricStore(metrics.TRAINER), port=0).close()


def test_closing_frees_the_port() -> None:
    port = free_port()
    for _ in range(2):
        server = MetricsServer(MetricStore(metrics.TRAINER), port=port, address=LOOPBACK)
        scrape(port)
        server.close()
        server.close()
