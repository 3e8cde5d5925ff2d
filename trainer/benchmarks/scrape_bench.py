"""What a scrape costs the process that trains: CPU seconds of a rank's page over HTTP, as a share of one core. Prints JSON lines.

python trainer/benchmarks/scrape_bench.py [--groups 20] [--interval 30]
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import urllib.request
from collections.abc import Callable

from rap_contract import metrics
from rap_contract.metrics import Kind
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.display.metrics_server import MetricsServer

SCRAPES = 300


def filled(groups: int) -> MetricStore:
    """Every metric a rank can export, each labelled one with a few values; workload by feature group."""
    store = MetricStore(metrics.TRAINER)
    for metric in metrics.TRAINER:
        many = groups if "group" in metric.labels else 4 if metric.labels else 1
        for number in range(many):
            labels = {label: f"{label}-{number}" for label in metric.labels}
            if metric.kind is Kind.HISTOGRAM:
                store.observe(metric, 0.01, **labels)
            elif metric.kind is Kind.COUNTER:
                store.inc(metric, 1.0, **labels)
            else:
                store.set(metric, 1.0, **labels)
    return store


def cpu_s() -> float:
    """Of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def each_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    work()
    began_s = cpu_s()
    for _ in range(SCRAPES):
        work()
    return (cpu_s() - began_s) / SCRAPES


def main() -> None:
    """Prints one line; the client's own work is measured apart and taken off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--interval", type=float, default=30.0, help="seconds between scrapes")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pages = {"/nothing": lambda: b"{}"}
    server = MetricsServer(filled(options.groups), port=port, address="127.0.0.1", pages=pages)
    try:
        size = len(_read(port, "/metrics"))
        page_s, client_s = each_s(lambda: _read(port, "/metrics")), each_s(lambda: _read(port, "/nothing"))
    finally:
        server.close()
    share = page_s / options.interval
    result = {
        "case": "scrape",
        "groups": options.groups,
        "bytes": size,
        "cpu_ms": 1e3 * page_s,
        "request_ms": 1e3 * client_s,
    }
    print(json.dumps({**result, "interval_s": options.interval, "share_of_a_core": share}))


def _read(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        data: bytes = answer.read()
        return data


if __name__ == "__main__":
    main()
