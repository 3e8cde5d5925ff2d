"""A validating webhook that refuses every object it is asked about, on a port of this machine."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from servers.certificates import CertificateAuthority
from servers.kube_api import Object

MESSAGE = "no pods today"


class RefusingWebhook:
    """Serves admission reviews over TLS; `configuration` makes an API server ask it."""

    def __init__(self, authority: CertificateAuthority) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                response = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": MESSAGE}}
                answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                del args

        pair = authority.issue("webhook", user="webhook", hosts=("127.0.0.1",))
        self._ca = authority.certificate.read_bytes()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()

    def configuration(self, name: str, namespace: str, *, group: str, plural: str) -> Object:
        """A ValidatingWebhookConfiguration for the creation of one kind in one namespace."""
        rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]}
        client = {
            "url": f"https://127.0.0.1:{self._server.server_address[1]}/",
            "caBundle": base64.b64encode(self._ca).decode(),
        }
        return {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": f"{plural}.refusing.test",
                    "rules": [rule],
                    "clientConfig": client,
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "failurePolicy": "Fail",
                }
            ],
        }
