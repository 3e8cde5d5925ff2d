"""One port that answers as the metrics of any rank: `python -m benchmarks.trainer_pages PORT`, for load tests.

The page has every series that a rank declares, with values that move as in training; it is made once a second, so that
serving costs the machine little.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from rap_contract import metrics
from rap_contract.guarded_http import Access, Page, PageServer
from rap_contract.metrics import TRAINER, Kind
from rap_trainer.display.metric_store import MetricStore

NUM_SERIES = 8  # of each metric with labels
STEPS_PER_S = 20.0


def page(passed_s: float) -> bytes:
    """What a rank says of its first attempt after so long."""
    store = MetricStore(TRAINER)
    steps = passed_s * STEPS_PER_S + 1.0
    for metric in TRAINER:
        for number in range(NUM_SERIES if metric.labels else 1):
            labels = {name: f"{name}-{number}" for name in metric.labels}
            if metric.kind is Kind.COUNTER:
                store.inc(metric, steps, **labels)
            elif metric.kind is Kind.GAUGE:
                store.set(metric, 1.0, **labels)
            else:
                counts = [0] * (len(metric.buckets) + 1)
                counts[5] = int(steps)
                store.observe_counts(metric, counts, steps / STEPS_PER_S, **labels)
    store.set(metrics.STEP, steps)
    store.set(metrics.ROWS_PER_SECOND, 80_000.0)
    store.set(metrics.CHECKPOINT_TIME_SECONDS, time.time() - 10.0)
    store.set_info(metrics.PLAN_INFO, plan="none")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(store)
    return generate_latest(registry)


def main(port: int) -> None:
    """Serves until killed."""
    begun_s = time.monotonic()
    now = {"body": page(0.0)}

    def answer(path: str, headers: Mapping[str, str]) -> Page | None:
        del headers
        return Page(body=now["body"]) if path == "/metrics" else None

    server = PageServer("127.0.0.1", port, answer, access=Access())
    server.start()
    forever = threading.Event()
    while not forever.wait(1.0):
        now["body"] = page(time.monotonic() - begun_s)


if __name__ == "__main__":
    main(int(sys.argv[1]))
