"""A small client for the Kubernetes API, for fixtures and the node agent: JSON in, JSON out.

It is not the client under test: the operator brings its own, and a fault in that one must not hide
behind the same fault here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class KubeError(Exception):
    """An answer of the API server that is not success, with its status code and reason."""

    def __init__(self, status: int, body: Object) -> None:
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', '')}")
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.body = body


class KubeApi:
    """Requests to one API server as one user; safe to use from several threads."""

    def __init__(
        self,
        server: str,
        *,
        ca_file: Path,
        certificate: Path | None = None,
        key: Path | None = None,
        token: str | None = None,
    ) -> None:
        self.server = server
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(
            maxsize=64,
            retries=False,
            ca_certs=str(ca_file),
            cert_file=str(certificate) if certificate else None,
            key_file=str(key) if key else None,
        )

    def get(self, path: str, **query: str) -> Object:
        """Read an object or a list."""
        return self.request("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Object]:
        """Read a whole list's items."""
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def find(self, path: str) -> Object | None:
        """Read an object, None when there is none."""
        try:
            return self.get(path)
        except KubeError as refused:
            if refused.status == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        """POST to a collection."""
        return self.request("POST", path, body=body)

    def replace(self, path: str, body: Object) -> Object:
        """PUT an object."""
        return self.request("PUT", path, body=body)

    def patch(self, path: str, body: Object, *, content_type: str = MERGE_PATCH, **query: str) -> Object:
        """PATCH an object, by default as a JSON merge patch."""
        return self.request("PATCH", path, body=body, content_type=content_type, query=query)

    def apply(self, path: str, body: Object, *, owner: str = "tests") -> Object:
        """Server-side apply, taking over fields others own."""
        return self.patch(path, body, content_type=APPLY_PATCH, fieldManager=owner, force="true")

    def delete(self, path: str, **options: Any) -> Object:
        """DELETE an object with DeleteOptions, e.g. `gracePeriodSeconds=0`."""
        return self.request("DELETE", path, body=options or None)

    def is_healthy(self, path: str = "/readyz") -> bool:
        """Whether a health path answers 200."""
        try:
            answer = self._pool.request("GET", self.server + path, headers=self._headers, timeout=2.0)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Send one request; raise KubeError for an answer that is not success."""
        answer = self._pool.request(
            method,
            self._url(path, query),
            body=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, "Content-Type": content_type, "Accept": "application/json"},
            timeout=30.0,
        )
        content = _as_object(answer.data)
        if answer.status >= 300:
            raise KubeError(answer.status, content)
        return content

    def follow(
        self, path: str, see: Callable[[Object], None], *, stopping: threading.Event, selector: str = ""
    ) -> None:
        """Each change of the objects at a path from now on, also after watches that ended, until `stopping`."""
        version = self.get(path, limit="1")["metadata"]["resourceVersion"]
        while not stopping.is_set():
            try:
                for event in self.watch(path, resource_version=version, labelSelector=selector):
                    item = event["object"]
                    version = item["metadata"].get("resourceVersion", version)
                    if "name" in item["metadata"]:
                        see(item)
            except urllib3.exceptions.HTTPError:
                continue
            except KubeError:  # the version is too old
                version = self.get(path, limit="1")["metadata"]["resourceVersion"]

    def watch(self, path: str, *, resource_version: str, timeout_s: int = 300, **query: str) -> Iterator[Object]:
        """Yield watch events until the server ends the watch; a lost connection raises urllib3's HTTPError."""
        answer = self._pool.request(
            "GET",
            self._url(
                path,
                {
                    **query,
                    "watch": "true",
                    "resourceVersion": resource_version,
                    "timeoutSeconds": str(timeout_s),
                    "allowWatchBookmarks": "true",
                },
            ),
            headers={**self._headers, "Accept": "application/json"},
            timeout=urllib3.Timeout(connect=5.0, read=timeout_s + 10.0),
            preload_content=False,
        )
        try:
            if answer.status >= 300:
                raise KubeError(answer.status, _as_object(answer.data))
            for line in _lines(answer):
                yield json.loads(line)
        finally:
            with suppress(urllib3.exceptions.HTTPError, OSError):
                answer.close()

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}"


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    pending = b""
    for chunk in answer.stream(amt=None):
        *whole, pending = (pending + chunk).split(b"\n")
        yield from (line for line in whole if line)


def _as_object(data: bytes) -> Object:
    try:
        content: Object = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")}
    return content
