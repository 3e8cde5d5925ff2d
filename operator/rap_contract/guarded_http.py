"""Serves pages over HTTP or HTTPS, some of them only to readers with a token: how both planes expose metrics.

Certificates and tokens are files, read again when they change, as Kubernetes rewrites mounted Secrets. Knows nothing of
what the pages say.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)
# A peer that stops talking holds a thread for so long, a handshake included.
IDLE_LIMIT_S = 30.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may read, and whether others may listen in. Without any file: everybody, in the clear."""

    certificate: Path | None = None
    """Chain of certificates, PEM."""
    key: Path | None = None
    token_file: Path | None = None
    """Readers of guarded pages send its content: `Authorization: Bearer ...`."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key come together: give both")
        if self.token_file is not None and self.certificate is None:
            raise ValueError("a token over plain HTTP can be read on the way: give a certificate and its key too")

    @classmethod
    def of_folder(cls, folder: Path) -> Access:
        """From a mounted Secret: `tls.crt` and `tls.key`, and `token` if there is one. Raises ValueError."""
        for name in ("tls.crt", "tls.key"):
            if not (folder / name).is_file():
                raise ValueError(f"no {name} in {folder}")
        token = folder / "token"
        return cls(certificate=folder / "tls.crt", key=folder / "tls.key", token_file=token if token.exists() else None)

    def allows(self, authorization: str) -> bool:
        """Whether a request with this Authorization header may read guarded pages; nobody while the token is empty."""
        if self.token_file is None:
            return True
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            LOG.warning("the token of the metrics cannot be read: %s", error)
            return False
        scheme, _, given = authorization.partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode(), token.encode())
        return scheme.lower() == "bearer" and bool(token) and is_equal


@dataclass(frozen=True, kw_only=True)
class Page:
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


Answer = Callable[[str, Mapping[str, str]], Page | None]
"""The page of a path, given the request's headers; None: not found."""


class PageServer(ThreadingHTTPServer):
    """Serves until stopped, each reader in a thread of its own. Port 0 is any free one."""

    daemon_threads = True

    def __init__(
        self, address: str, port: int, answer: Answer, *, access: Access, guarded: frozenset[str] = frozenset()
    ) -> None:
        """Raises OSError for a port that cannot be had, ValueError for a certificate that cannot be used."""
        self.answer, self.access, self.guarded = answer, access, guarded
        self._tls = _Tls(access) if access.certificate else None
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, name="pages", daemon=True)

    def start(self) -> None:
        """Serves from a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stops serving and frees the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the reader's own thread: one that never finishes its handshake holds up nobody else."""
        request.settimeout(IDLE_LIMIT_S)
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with self._tls.context().wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Peers that speak plain HTTP, or hang up, are their own affair."""
        del request
        LOG.debug("reader %s", client_address, exc_info=True)


class _Tls:
    """A server's context that follows its files."""

    def __init__(self, access: Access) -> None:
        assert access.certificate is not None
        assert access.key is not None
        self._files = (access.certificate, access.key)
        self._lock = threading.Lock()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen: tuple[int, ...] = ()
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"certificate {access.certificate} and key {access.key} cannot be used: {error}"
            ) from error

    def context(self) -> ssl.SSLContext:
        """With the newest certificate that can be used."""
        with contextlib.suppress(OSError, ssl.SSLError):  # half-written: the one before serves on
            self._load()
        return self._context

    def _load(self) -> None:
        with self._lock:
            seen = tuple(file.stat().st_mtime_ns for file in self._files)
            if seen != self._seen:
                self._context.load_cert_chain(*self._files)
                self._seen = seen


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "rap"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.server.guarded and not self.server.access.allows(self.headers.get("Authorization", "")):
            self._send(Page(status=401, body=b"send the token: Authorization: Bearer ...\n"))
            return
        page = self.server.answer(path, dict(self.headers.items()))
        self._send(page or Page(status=404, body=b"not found\n"))

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, *args: object) -> None:
        del args
