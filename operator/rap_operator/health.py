"""/healthz, /readyz and /metrics. Health is progress: a process that answers but stands still is not healthy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rap_operator.controller import Controller

# The server ends every watch within 8 minutes and sends a bookmark a minute; lists take seconds.
MAX_WATCH_IDLE_S = 600.0
MAX_QUEUE_AGE_S = 300.0  # a pass takes at most a few requests of 30 s each

Check = Callable[[], str]
"""Empty when all is well, else what is not."""


def standing_still(
    controller: Controller, *, max_idle_s: float = MAX_WATCH_IDLE_S, max_age_s: float = MAX_QUEUE_AGE_S
) -> str:
    """What makes no progress in a controller; empty when all does."""
    for reflector in controller.reflectors:
        idle_s = reflector.idle_s()
        if idle_s > max_idle_s:
            return f"the watch of {reflector.resource.plural} has stood still for {idle_s:.0f} s"
    age_s = controller.queue.oldest_s()
    return f"a job has waited {age_s:.0f} s for its pass" if age_s > max_age_s else ""


class HealthServer:
    """Serves the three paths on a port of all addresses."""

    def __init__(self, port: int, *, healthy: Check, ready: Check, page: Callable[[], bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, page())
                elif self.path in ("/healthz", "/readyz"):
                    trouble = healthy() if self.path == "/healthz" else ready()
                    self._answer(503 if trouble else 200, f"{trouble or 'ok'}\n".encode())
                else:
                    self._answer(404, b"not found\n")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                del args

        self._server = ThreadingHTTPServer(("", port), Handler)
        self.port = self._server.server_address[1]

    def start(self) -> None:
        """Serves from a thread of its own."""
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def stop(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
