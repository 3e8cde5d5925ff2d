"""Serves a rank's metrics for Prometheus from a daemon thread: over HTTP, or HTTPS and to holders of a token."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from rap_contract.guarded_http import Access, Page, PageServer
from rap_contract.pod import ENV_METRICS_SECRET, METRICS_SECRET_MOUNT, PLANNING_PATH
from rap_contract.problem import InvalidDocument, Problem

from rap_trainer.display.metric_store import MetricStore

PATIENCE_S = 3.0
"""How long a taken port is tried again: a predecessor that was killed a moment ago may still hold it."""
_RETRY_S = 0.1


class MetricsServer:
    """`/metrics` on `port` until closed. Port 0 serves nothing.

    Raises InvalidDocument (exit code 2) if the port stays taken for `patience_s`, or is not allowed: a job that cannot
    be watched should not start by accident.
    """

    def __init__(
        self,
        store: MetricStore,
        *,
        port: int,
        address: str = "0.0.0.0",  # noqa: S104  # Prometheus and the operator scrape from outside
        patience_s: float = PATIENCE_S,
        access: Access | None = None,
        pages: Mapping[str, Callable[[], bytes]] | None = None,
    ) -> None:
        """`pages`: JSON made for each request, by path; looked up then, so it may be filled later."""
        self._server: PageServer | None = None
        if port == 0:
            return
        registry = CollectorRegistry(auto_describe=False)
        registry.register(store)

        def page(path: str, headers: Mapping[str, str]) -> Page | None:
            if pages is not None and path in pages:
                return Page(body=pages[path](), content_type="application/json")
            if path not in ("/", "/metrics"):
                return None
            encode, content_type = choose_encoder(headers.get("Accept", ""))
            return Page(body=encode(registry), content_type=content_type)

        guarded = frozenset({"/", "/metrics", PLANNING_PATH})
        deadline_s = time.monotonic() + patience_s
        while self._server is None:
            try:
                self._server = PageServer(address, port, page, access=access or Access(), guarded=guarded)
            except OverflowError:
                hint = "the ports of the ranks follow each other up to 65535"
                raise _port_problem(port, "is no port", hint) from None
            except OSError as error:
                if error.errno == errno.EACCES:
                    raise _port_problem(port, "is not allowed for this user", "take one above 1023") from None
                if error.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() >= deadline_s:
                    raise _port_problem(port, "is taken by another process", "") from None
                time.sleep(_RETRY_S)
            except ValueError as error:
                raise _secret_problem(str(error)) from None
        self._server.start()

    def close(self) -> None:
        """Frees the port; idempotent."""
        if self._server is None:
            return
        self._server.stop()
        self._server = None


def access_of(secret_name: str | None) -> Access:
    """How `trainer.metricsSecretName` wants the metrics served. Raises InvalidDocument if its files are not there."""
    if secret_name is None:
        return Access()
    try:
        return Access.of_folder(Path(os.environ.get(ENV_METRICS_SECRET, METRICS_SECRET_MOUNT)))
    except ValueError as error:
        raise _secret_problem(str(error)) from None


def _secret_problem(message: str) -> InvalidDocument:
    hint = (
        "the Secret needs tls.crt and tls.key, PEM; in a pod the operator mounts it, elsewhere put the files into "
        f"a folder and name it in ${ENV_METRICS_SECRET}"
    )
    return InvalidDocument([Problem(path=("spec", "trainer", "metricsSecretName"), message=message, hint=hint)])


def _port_problem(port: int, what: str, hint: str) -> InvalidDocument:
    advice = "set spec.trainer.metricsPort to a free port, or to 0 for no metrics"
    return InvalidDocument(
        [
            Problem(
                path=("spec", "trainer", "metricsPort"),
                message=f"port {port} for Prometheus metrics {what}",
                hint=f"{advice}; {hint}" if hint else advice,
            )
        ]
    )
