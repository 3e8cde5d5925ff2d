"""/healthz, /readyz and /metrics. Health is progress: a process that answers but stands still is not healthy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rap_contract.guarded_http import Access, Page, PageServer

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
    """Serves the three paths on a port of all addresses; only /metrics asks for a token, if there is one."""

    def __init__(
        self, port: int, *, healthy: Check, ready: Check, page: Callable[[], bytes], access: Access | None = None
    ) -> None:
        checks = {"/healthz": healthy, "/readyz": ready}

        def answer(path: str, headers: Mapping[str, str]) -> Page | None:
            del headers
            if path == "/metrics":
                return Page(body=page())
            if path not in checks:
                return None
            trouble = checks[path]()
            return Page(status=503 if trouble else 200, body=f"{trouble or 'ok'}\n".encode())

        guarded = frozenset({"/metrics"})
        self._server = PageServer("", port, answer, access=access or Access(), guarded=guarded)
        self.port = self._server.port

    def start(self) -> None:
        """Serves from a thread of its own."""
        self._server.start()

    def stop(self) -> None:
        """Stops serving."""
        self._server.stop()
