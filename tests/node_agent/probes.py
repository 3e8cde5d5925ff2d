"""Startup, readiness and liveness probes of a container: httpGet, tcpSocket and exec."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
from dataclasses import dataclass

from servers.kube_api import Object


@dataclass(frozen=True, kw_only=True)
class ProbeState:
    """How often a probe has passed or failed in a row, and when it is due (monotonic seconds)."""

    due_s: float
    passes: int = 0
    failures: int = 0

    def with_result(self, *, passed: bool, now_s: float, period_s: float) -> ProbeState:
        """Count one result."""
        return ProbeState(
            due_s=now_s + period_s,
            passes=self.passes + 1 if passed else 0,
            failures=0 if passed else self.failures + 1,
        )


def passes(probe: Object, container: Object, *, address: str, pid: int | None) -> bool:
    """Run a probe once, within its own time limit."""
    limit_s = float(probe.get("timeoutSeconds", 1))
    try:
        if action := probe.get("httpGet"):
            return _http(action, container, action.get("host") or address, limit_s)
        if action := probe.get("tcpSocket"):
            where = (action.get("host") or address, _port(action["port"], container))
            with socket.create_connection(where, timeout=limit_s):
                return True
        if action := probe.get("exec"):
            command = ["nsenter", f"--target={pid}", "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd=/"]
            answer = subprocess.run([*command, *action["command"]], capture_output=True, timeout=limit_s, check=False)
            return pid is not None and answer.returncode == 0
    except (OSError, http.client.HTTPException, subprocess.TimeoutExpired):
        return False
    return True  # a kind this agent does not know (gRPC) is taken as passing


_TRUST_ANY = ssl.create_default_context()
_TRUST_ANY.check_hostname = False
_TRUST_ANY.verify_mode = ssl.CERT_NONE


def _http(action: Object, container: Object, host: str, limit_s: float) -> bool:
    port = _port(action["port"], container)
    connection = http.client.HTTPConnection(host, port, timeout=limit_s)
    if action.get("scheme") == "HTTPS":  # as the kubelet, without a look at the certificate
        connection = http.client.HTTPSConnection(host, port, timeout=limit_s, context=_TRUST_ANY)
    try:
        headers = {header["name"]: header["value"] for header in action.get("httpHeaders", ())}
        connection.request("GET", action.get("path", "/"), headers=headers)
        return 200 <= connection.getresponse().status < 400
    finally:
        connection.close()


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    named = {entry.get("name"): entry["containerPort"] for entry in container.get("ports", ())}
    return int(named.get(port, port))
