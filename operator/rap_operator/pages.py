"""Pages of metrics: read over HTTP in bounded time and size, and of a page in Prometheus' text format the wanted samples.

A thousand jobs are read all day, so both are written to be cheap. Not here: whom to ask, and what the numbers mean.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BYTES = 4_000_000
TIMEOUT_S = 3.0
_CHUNK_BYTES = 65_536
# Each trainer writes its page itself. Every pattern takes time in proportion to the page whatever is in it: none crosses
# a line, and labels are looked for only where one may begin.
_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_LABEL = re.compile(rf"(?:^|,)[ \t]*(\w+)=({_QUOTED})")
_ESCAPES = {r"\\": "\\", r"\n": "\n", r"\"": '"'}

Fetch = Callable[[str], str]
"""The text of a URL. Raises OSError or ValueError."""


class Sample(NamedTuple):
    """One number of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Samples:
    """Finds the samples of some metrics in pages; what else a page says is not looked at."""

    def __init__(self, names: Iterable[str]) -> None:
        # A literal line feed in front lets the engine skip from line to line, which an anchor does not.
        choice = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        self._line = re.compile(rf"\n({choice})(?:\{{((?:[^\"}}\n]|{_QUOTED})*)\}})?[ \t]+(\S+)")

    def of(self, text: str) -> Iterator[Sample]:
        """The wanted samples of a page. Raises ValueError for a value that is no number."""
        for name, labels, number in self._line.findall(f"\n{text}"):
            yield Sample(name, _labels(labels), float(number))


def _labels(text: str) -> dict[str, str]:
    if text.count('"') == 2 and "\\" not in text:  # one label: a third of the time
        name, _, quoted = text.partition('="')
        return {name: quoted.partition('"')[0]}
    return {name: _unescaped(quoted[1:-1]) for name, quoted in _LABEL.findall(text)}


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text) if "\\" in text else text


def http_fetch(*, ca_file: Path | None = None, token_file: Path | None = None) -> Fetch:
    """Reads pages of at most MAX_BYTES in at most a few seconds; redirects are not followed.

    HTTPS pages must come from a server with a certificate of `ca_file`, whatever its name: pods have none that lasts.
    Only they are sent the token, which is read anew each time.
    """

    @functools.cache
    def trusted() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca_file)
        context.check_hostname = False
        return context

    def fetch(url: str) -> str:
        place = urlsplit(url)
        headers: dict[str, str] = {}
        if place.scheme == "https":
            if ca_file is None:
                raise ValueError("HTTPS metrics need --scrape-ca-file")
            if token_file is not None:
                headers["Authorization"] = f"Bearer {token_file.read_text().strip()}"
        connection = _connection(place.hostname or "", place.port, trusted if place.scheme == "https" else None)
        try:
            connection.request("GET", f"{place.path}?{place.query}" if place.query else place.path, headers=headers)
            return _text(connection.sock)
        except http.client.HTTPException as error:
            raise ValueError(f"no answer in HTTP: {type(error).__name__} {error}") from error
        finally:
            connection.close()

    return fetch


def _connection(
    host: str, port: int | None, trusted: Callable[[], ssl.SSLContext] | None
) -> http.client.HTTPConnection:
    if trusted is None:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=trusted())


def _text(connection: socket.socket) -> str:
    """The body of the one answer that comes, headers and trailers included within the time that is left for all of it."""
    with http.client.HTTPResponse(_Bounded(connection), method="GET") as answer:  # type: ignore[arg-type]
        answer.begin()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        data = bytearray()
        while chunk := answer.read1(_CHUNK_BYTES):
            data += chunk
            if len(data) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes")
        if answer.length:
            raise ValueError(f"the page ended {answer.length} bytes short")
        return data.decode(errors="replace")


class _Bounded(io.RawIOBase):
    """What comes over a connection, until a deadline: a time-out of its own starts anew with each byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._deadline_s = connection, time.monotonic() + TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left_s = self._deadline_s - time.monotonic()
        if left_s > 0:
            self._connection.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                return self._connection.recv_into(buffer)
        raise TimeoutError(f"the page did not end within {TIMEOUT_S:g} s")

    def makefile(self, mode: str) -> io.BufferedReader:
        """As HTTPResponse asks a socket for."""
        assert mode == "rb"
        return io.BufferedReader(self)
