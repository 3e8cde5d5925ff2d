"""Pages of metrics: what is read of their text, and how long and how large an answer may be."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
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


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["group", "topic", "le"]), st.text(max_size=20), min_size=1))
def test_labels_come_back_as_they_went_in(labels: dict[str, str]) -> None:
    registry = CollectorRegistry()
    Gauge("thing", "What it is.", list(labels), registry=registry).labels(**labels).set(1.5)
    assert list(Samples(["thing"]).of(generate_latest(registry).decode())) == [Sample("thing", labels, 1.5)]


@pytest.mark.parametrize(
    "text",
    [
        'rap_step{a="' * 100_000,
        "rap_step{\n" * 100_000,
        'rap_step{a="b",c="d",' + "x" * 1_000_000 + "} 1\n",
        'rap_step{a="b",c="' + '\\"' * 500_000 + "\n",
        "rap_step" + " " * 1_000_000 + "\nrap_step " + "1" * 1_000_000 + "\n",
        "\nrap_step" * 100_000,
    ],
    ids=["quotes", "braces", "a long label", "escapes", "blanks and digits", "names"],
)
def test_a_page_made_to_be_slow_takes_time_in_proportion_to_its_length(text: str) -> None:
    assert len(list(Samples(["rap_step"]).of(text))) <= 1  # a pattern that goes back and forth would take hours


def test_a_value_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="many"):
        list(Samples(["rap_step"]).of("rap_step many\n"))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIPS = {
    "slow": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "slow status": (b"", b"H"),
    "slow headers": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "continues": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (CHUNKED + b"b\r\nrap_step 1\n\r\n0\r\n", b"x: y\r\n"),
}
"""How an answer begins that never ends, and what comes again and again."""
RAW = {
    "chunked": CHUNKED + b"5\r\nrap_s\r\n6;x=y\r\ntep 1\n\r\n0\r\nx: y\r\n\r\n",
    "chunks end": CHUNKED + b"ff\r\nrap_step 1\n",
    "chunk size": CHUNKED + b"many\r\nrap_step 1\n",
    "no http": b"220 smtp.example.com ESMTP\r\n",
    "nothing": b"",
    "headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 101 + b"\r\n",
    "long header": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
}


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        what = unquote(self.path.strip("/"))
        if what in DRIPS:
            begun, drop = DRIPS[what]
            self.wfile.write(begun)
            stop = threading.Event()
            for _ in range(200):
                self.wfile.write(drop)
                self.wfile.flush()
                stop.wait(0.05)
            return
        if what in RAW:
            self.wfile.write(RAW[what])
            return
        self.send_response(302 if what == "elsewhere" else 200)
        if what == "elsewhere":
            self.send_header("Location", "/small")
        if what == "short":
            self.send_header("Content-Length", "100")
        self.end_headers()
        if what == "endless":
            for _ in range(100):
                self.wfile.write(b"x" * 100_000)
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
        *((page, "did not end within") for page in DRIPS),
        ("chunks end", "IncompleteRead"),
        ("chunk size", "IncompleteRead"),
        ("no http", "BadStatusLine"),
        ("nothing", "RemoteDisconnected|Connection"),
        ("headers", "more than 100 headers"),
        ("long header", "header line"),
    ],
)
def test_a_page_that_is_not_well_is_refused(url: str, page: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http_fetch()(f"{url}/small") == http_fetch()(f"{url}/chunked") == "rap_step 1\n"
    if page in DRIPS:
        monkeypatch.setattr(pages, "TIMEOUT_S", 0.5)
    with pytest.raises((ValueError, OSError), match=message):
        http_fetch()(f"{url}/{quote(page)}")
