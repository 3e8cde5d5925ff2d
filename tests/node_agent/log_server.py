"""The part of a kubelet's own API that `kubectl logs` needs: container output over HTTPS, with --follow."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from servers.certificates import CertificateAuthority

FOLLOW_EVERY_S = 0.1

# Namespace, pod and container to the file of the present (or previous) run and whether it still grows.
FindLog = Callable[[str, str, str, bool], "tuple[Path, Callable[[], bool]] | None"]


class LogServer:
    """Serves /containerLogs/NAMESPACE/POD/CONTAINER to the API server."""

    def __init__(self, folder: Path, find_log: FindLog) -> None:
        serving = CertificateAuthority(folder).issue("kubelet", user="kubelet")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(find_log))
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(serving.certificate, serving.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="kubelet-logs")

    def start(self) -> None:
        """Serve in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


def _handler(find_log: FindLog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            words = parts.path.strip("/").split("/")
            is_previous = query.get("previous") == "true"
            found = find_log(words[1], words[2], words[3], is_previous) if words[0] == "containerLogs" else None
            if found is None or not found[0].exists():
                self.send_error(404, "no such log")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            path, is_growing = found
            self._copy(path, query.get("tailLines"), is_growing if query.get("follow") == "true" else lambda: False)

        def _copy(self, path: Path, tail_lines: str | None, is_growing: Callable[[], bool]) -> None:
            with path.open("rb") as log:
                content = log.read()
                if tail_lines:
                    content = b"".join(content.splitlines(keepends=True)[-int(tail_lines) :])
                self.wfile.write(content)
                more = True
                while more:
                    more = is_growing()  # asked before reading, so that the last words are not lost
                    self.wfile.write(log.read())
                    self.wfile.flush()
                    if more:
                        time.sleep(FOLLOW_EVERY_S)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name in http.server)
            """Say nothing on standard error."""

    return Handler
