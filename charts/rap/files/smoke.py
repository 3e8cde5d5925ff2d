"""What `helm test` runs: creates a RAPJob, says how it goes, waits for its end, removes it. Standard library only.

python smoke.py JOB.json TIMEOUT_SECONDS        exit code 0 when the job has completed, 1 otherwise
"""
# ruff: noqa: INP001  # a file of the chart, not a package

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Object = dict[str, Any]


def main(job_file: str, timeout: str) -> int:
    """Runs the test."""
    job = json.loads(Path(job_file).read_text())
    metadata = job["metadata"]
    jobs = f"/apis/rap.dev/v1alpha1/namespaces/{metadata['namespace']}/rapjobs"
    mine = f"{jobs}/{metadata['name']}"
    deadline_s = time.monotonic() + float(timeout)
    request("DELETE", mine, allowed=(404,))
    while request("GET", mine, allowed=(404,)).get("kind") == "RAPJob" and time.monotonic() < deadline_s:
        time.sleep(0.5)
    request("POST", jobs, job)
    said, status = "", Object()
    while time.monotonic() < deadline_s:
        status = request("GET", mine).get("status") or {}
        line = f"phase {status.get('phase', 'not seen by the operator yet')}, pods {status.get('ready', '0')}"
        if line != said:
            said = line
            print(line, flush=True)
        if status.get("phase") in ("Completed", "Failed"):
            break
        time.sleep(0.5)
    for condition in status.get("conditions") or ():
        print("{type}={status} {reason} {message}".format(**{"message": "", **condition}), flush=True)
    if status.get("phase") == "Completed":
        request("DELETE", mine)
        return 0
    print(f"the job did not complete in {timeout} s; look at it with kubectl describe rapjob {metadata['name']}")
    return 1


def request(method: str, path: str, body: Object | None = None, *, allowed: tuple[int, ...] = ()) -> Object:
    """One request to the API server as the pod's ServiceAccount."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    asked = urllib.request.Request(  # always https
        f"https://{host}:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"},
    )
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(asked, context=trust, timeout=30) as answer:  # noqa: S310  # always https
            content: Object = json.load(answer)
            return content
    except urllib.error.HTTPError as refused:
        if refused.code in allowed:
            return {}
        sys.exit(f"{method} {path}: {refused.code} {refused.read().decode(errors='replace')[:500]}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
