"""The client's own rules: who does not lead writes nothing, errors carry what the server said, bursts are spread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import kubernetes.client
import pytest
from rap_operator.api import ApiError, ApiUnavailable, KubernetesApi, RateLimit
from rap_operator.resources import JOBS, RAPJOBS, SERVICES


class Server:
    """Answers every request the same, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append(f"{self.command} {self.path}")
                status, headers, body = outer.answer
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = _any

            def log_message(self, *args: object) -> None:
                del args

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def api(server: Server, *, leads: bool = True) -> KubernetesApi:
    configuration = kubernetes.client.Configuration()
    configuration.host = server.url
    return KubernetesApi(kubernetes.client.ApiClient(configuration), may_write=lambda: leads)


def test_paths_are_those_of_kubernetes(server: Server) -> None:
    client = api(server)
    client.list(RAPJOBS, None, query={"limit": "5"})
    client.patch(RAPJOBS, "ns", "a", {}, subresource="status")
    client.create(SERVICES, "ns", {})
    client.delete(JOBS, "ns", "a", {})
    assert server.asked == [
        "GET /apis/rap.dev/v1alpha1/rapjobs?limit=5",
        "PATCH /apis/rap.dev/v1alpha1/namespaces/ns/rapjobs/a/status",
        "POST /api/v1/namespaces/ns/services",
        "DELETE /apis/batch/v1/namespaces/ns/jobs/a",
    ]


def test_a_process_that_lost_the_lease_writes_nothing_but_may_read(server: Server) -> None:
    client = api(server, leads=False)
    for write in (
        lambda: client.create(SERVICES, "ns", {}),
        lambda: client.patch(RAPJOBS, "ns", "a", {}),
        lambda: client.delete(JOBS, "ns", "a", {}),
    ):
        with pytest.raises(ApiUnavailable, match="no longer leads"):
            write()
    client.get(RAPJOBS, "ns", "a")
    assert server.asked == ["GET /apis/rap.dev/v1alpha1/namespaces/ns/rapjobs/a"]


def test_an_error_says_what_the_server_said(server: Server) -> None:
    server.answer = (429, {"Retry-After": "7"}, b'{"reason": "TooManyRequests", "message": "slow down"}')
    with pytest.raises(ApiError, match="429 TooManyRequests: slow down") as caught:
        api(server).get(RAPJOBS, "ns", "a")
    assert caught.value.retry_after_s == 7
    assert len(server.asked) == 1  # when to try again is the queue's decision


def test_an_answer_that_is_no_status_is_an_error_all_the_same(server: Server) -> None:
    server.answer = (502, {}, b"<html>bad gateway</html>")
    with pytest.raises(ApiError, match="bad gateway"):
        api(server).get(RAPJOBS, "ns", "a")


def test_a_server_that_is_gone_is_unavailable(server: Server) -> None:
    client = api(server)
    server.close()
    with pytest.raises(ApiUnavailable):
        client.get(RAPJOBS, "ns", "a")


def test_a_burst_beyond_a_seconds_worth_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    rate = RateLimit(per_second=10)
    for _ in range(12):
        rate.wait()
    assert len([delay_s for delay_s in waited if delay_s > 0.001]) == 2
    assert waited[-1] == pytest.approx(0.2)
