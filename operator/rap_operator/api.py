"""The few requests the operator makes, on the `kubernetes` client's configuration, TLS and authentication.

Objects are parsed JSON. The generated models are left out: they cost more time and memory than the requests
themselves, and refuse fields they do not know.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlencode

import kubernetes.client
import urllib3

from rap_operator.documents import parsed
from rap_operator.resources import Resource

Object = dict[str, Any]

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The server refused a request."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_conflict(self) -> bool:
        return self.status == 409

    @property
    def is_absent(self) -> bool:
        return self.status == 404

    @property
    def is_expired(self) -> bool:
        return self.status == 410


class ApiUnavailable(Exception):
    """The server was not reached, or did not answer in time; the request may or may not have taken effect."""


class Api(Protocol):
    """What the operator asks of a cluster."""

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> Object:
        """One page of objects."""

    def watch(
        self, resource: Resource, namespace: str | None, *, query: Mapping[str, str], read_timeout_s: float
    ) -> Iterator[Object]:
        """Events until the server ends the watch. Raises ApiUnavailable after `read_timeout_s` of silence."""

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """An object."""

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """A new object."""

    def patch(self, resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        """The object after a JSON merge patch."""

    def delete(self, resource: Resource, namespace: str, name: str, options: Object) -> None:
        """Asks for an object's deletion."""


class KubernetesApi:
    """The Api of a real server; safe to use from several threads."""

    def __init__(
        self, client: kubernetes.client.ApiClient, *, may_write: Callable[[], bool] = lambda: True, qps: float = 400.0
    ) -> None:
        self._client = client
        self._server = client.configuration.host.rstrip("/")
        self._pool: urllib3.PoolManager = client.rest_client.pool_manager
        self._may_write = may_write
        self._rate = RateLimit(per_second=qps)
        self.calls: Callable[[str, str, int, float], None] = lambda verb, kind, status, seconds: None

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> Object:
        return self._request("GET", resource, resource.path(namespace), query=query)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self._request("GET", resource, resource.path(namespace, name))

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        return self._request("POST", resource, resource.path(namespace), body=body)

    def patch(self, resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        return self._request("PATCH", resource, resource.path(namespace, name, subresource), body=body)

    def delete(self, resource: Resource, namespace: str, name: str, options: Object) -> None:
        self._request("DELETE", resource, resource.path(namespace, name), body=options)

    def watch(
        self, resource: Resource, namespace: str | None, *, query: Mapping[str, str], read_timeout_s: float
    ) -> Iterator[Object]:
        url = f"{self._server}{resource.path(namespace)}?{urlencode({**query, 'watch': 'true'})}"
        answer, began_s = None, time.monotonic()
        try:
            answer = self._pool.request(
                "GET",
                url,
                headers=self._headers(),
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
                preload_content=False,
                retries=False,
            )
            self.calls("watch", resource.kind, answer.status, time.monotonic() - began_s)
            if answer.status >= 300:
                raise _error(answer.status, answer.data, answer.headers)
            for line in _lines(answer):
                yield parsed(line)
        except urllib3.exceptions.HTTPError as error:
            raise ApiUnavailable(f"watch of {resource.plural}: {error}") from error
        finally:
            if answer is not None:
                with suppress(urllib3.exceptions.HTTPError, OSError):
                    answer.close()

    def _request(
        self,
        method: str,
        resource: Resource,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        if method != "GET" and not self._may_write():
            raise ApiUnavailable("this process no longer leads: nothing is written")
        self._rate.wait()
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        began_s = time.monotonic()
        try:
            answer = self._pool.request(
                method,
                f"{self._server}{path}?{urlencode(query)}" if query else f"{self._server}{path}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            self.calls(method.lower(), resource.kind, 0, time.monotonic() - began_s)
            raise ApiUnavailable(f"{method} {path}: {error}") from error
        self.calls(method.lower(), resource.kind, answer.status, time.monotonic() - began_s)
        if answer.status >= 300:
            raise _error(answer.status, answer.data, answer.headers)
        content: Object = parsed(answer.data)
        return content

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "rap-operator"}
        self._client.update_params_for_auth(headers, [], ["BearerToken"], None, None, None)
        return headers


class RateLimit:
    """A token bucket of one second's worth of requests."""

    def __init__(self, *, per_second: float) -> None:
        self._per_second = per_second
        self._lock = threading.Lock()
        self._next_s = 0.0

    def wait(self) -> None:
        """Waits for a request's turn."""
        with self._lock:
            now_s = time.monotonic()
            self._next_s = max(self._next_s, now_s - 1.0) + 1.0 / self._per_second
            delay_s = self._next_s - now_s
        if delay_s > 0:
            time.sleep(delay_s)


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in answer.stream(amt=None):
        pending += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            yield from (line for line in whole if line)


def _error(status: int, data: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        said = parsed(data)
    except ValueError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    retry_after = headers.get("Retry-After", "")
    return ApiError(
        status,
        str(said.get("reason", "")),
        str(said.get("message") or data[:512].decode(errors="replace")),
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )
