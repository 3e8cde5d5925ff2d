"""Serves a rank's metrics over HTTP for Prometheus, from a daemon thread. Plain HTTP, no authentication."""

from __future__ import annotations

import errno
import time

from prometheus_client import CollectorRegistry, start_http_server
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
    ) -> None:
        self._server = None
        if port == 0:
            return
        registry = CollectorRegistry(auto_describe=False)
        registry.register(store)
        deadline_s = time.monotonic() + patience_s
        while self._server is None:
            try:
                self._server, self._thread = start_http_server(port, addr=address, registry=registry)
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

    def close(self) -> None:
        """Frees the port; idempotent."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None


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
