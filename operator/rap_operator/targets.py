"""Whom to ask for metrics: the pod of index 0 of each attempt that runs, from the cache. Pure over the cache."""

from __future__ import annotations

from collections.abc import Iterator

from rap_operator.cache import Cache
from rap_operator.scrape import Target

DEFAULT_PORT = 9400


def targets(cache: Cache) -> Iterator[Target]:
    """The first rank of every running job that serves metrics."""
    for view in cache.rapjobs():
        item = view.item
        attempt = ((item.get("status") or {}).get("attempt")) or {}
        trainer = (item.get("spec") or {}).get("trainer") or {}
        port = trainer.get("metricsPort", DEFAULT_PORT)
        scheme = "https" if trainer.get("metricsSecretName") else "http"
        if attempt.get("state") != "Created" or not isinstance(port, int) or not port:
            continue
        for pod in cache.pods(view.meta.uid):
            if pod.attempt == attempt.get("number") and pod.index == 0 and pod.phase == "Running" and pod.ip:
                host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
                yield Target(
                    key=(view.meta.namespace, view.meta.name),
                    uid=view.meta.uid,
                    attempt=pod.attempt,
                    url=f"{scheme}://{host}:{port}/metrics",
                )
                break
