"""Pages of metrics: what is read of their text, and how long and how large an answer may be."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from rap_operator import pages
from rap_operator.pages import Sample, Samples, http_fetch


def test_only_whole_names_of_wanted_metrics_are_found() -> None:
    text = "# HELP rap_step Steps.\nrap_step 3\nrap_steps 4\nother_rap_step 5\nrap_step_total 6 1700000000\n"
    assert list(Samples(["rap_step", "rap_step_total"]).of(text)) == [
        Sample("rap_step", {}, 3.0),
        Sample("rap_step_total", {}, 6.0),
    ]


@given(st.dictionaries(st.sampled_from(["group", "topic", "le"]), st.text(max_size=20), min_size=1))
def test_labels_come_back_as_they_went_in(labels: dict[str, str]) -> None:
    registry = CollectorRegistry()
    Gauge("thing", "What it is.", list(labels), registry=registry).labels(**labels).set(1.5)
    assert list(Samples(["thing"]).of(generate_latest(registry).decode())) == [Sample("thing", labels, 1.5)]


def test_a_value_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="many"):
        list(Samples(["rap_step"]).of("rap_step many\n"))


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        what = self.path.strip("/")
        self.send_response(302 if what == "elsewhere" else 200)
        if what == "elsewhere":
            self.send_header("Location", "/small")
        if what == "short":
            self.send_header("Content-Length", "100")
        self.end_headers()
        if what == "endless":
            for _ in range(100):
                self.wfile.write(b"x" * 100_000)
        elif what == "slow":
            stop = threading.Event()
            for _ in range(200):
                self.wfile.write(b"x")
                self.wfile.flush()
                stop.wait(0.05)
        else:
            self.wfile.write(b"rap_step 1\n")

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def url() -> Iterator[str]:
    """A server of pages that are well or not."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  # readers that hang up
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("elsewhere", "status 302"),
        ("short", "89 bytes short"),
        ("endless", "more than 4000000 bytes"),
        ("slow", "did not end within"),
    ],
)
def test_a_page_that_is_not_well_is_refused(url: str, page: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TIMEOUT_S", 1.0)
    assert http_fetch()(f"{url}/small") == "rap_step 1\n"
    with pytest.raises((ValueError, OSError), match=message):
        http_fetch()(f"{url}/{page}")
