"""Keeps the cache in step with the server: a paged list, then a watch, for ever.

A watch ends at a random time of the server's, and is given up when it is silent for longer than the server's
bookmarks allow: a half-open connection looks just like a quiet cluster otherwise.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rap_operator.api import Api, ApiError, ApiUnavailable
from rap_operator.cache import Cache, View, view_of
from rap_operator.naming import SELECTOR
from rap_operator.resources import RAPJOBS, Resource

LOG = logging.getLogger(__name__)
PAGE = 500


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a watch."""

    min_timeout_s: int = 240
    max_timeout_s: int = 480
    silence_s: float = 150.0
    """The API server sends a bookmark about once a minute."""
    min_backoff_s: float = 0.2
    max_backoff_s: float = 15.0


class Reflector:
    """The list and watch of one kind in one namespace (None: all); `run` returns when `stopping` is set."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        resource: Resource,
        namespace: str | None,
        *,
        stopping: threading.Event,
        timing: Timing | None = None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.is_synced = threading.Event()
        self.progress_s = time.monotonic()
        """When something last came, a bookmark or the end of a watch included."""
        self.num_restarts = 0
        self.on_restart: Callable[[str], None] = lambda why: None
        self._api, self._cache, self._stopping = api, cache, stopping
        self._timing = timing or Timing()
        self._selector = {} if resource is RAPJOBS else {"labelSelector": SELECTOR}

    def idle_s(self) -> float:
        """Seconds without any progress."""
        return time.monotonic() - self.progress_s

    def run(self) -> None:
        """Lists, watches, and begins again where it was; from the list when the server forgot."""
        version, failures = "", 0
        while not self._stopping.is_set():
            try:
                version = version or self._list()
                version = self._watch(version)
                failures = 0
            except ApiError as error:
                version = "" if error.is_expired or not self._is_passing(error) else version
                failures = self._failed(error, failures, retry_after_s=error.retry_after_s)
            except ApiUnavailable as error:
                failures = self._failed(error, failures)
            except Exception as error:
                LOG.exception("watch of %s", self.resource.plural)
                version, failures = "", self._failed(error, failures)

    def _failed(self, error: Exception, failures: int, *, retry_after_s: float | None = None) -> int:
        self.num_restarts += 1
        self.on_restart(type(error).__name__)
        LOG.log(
            logging.INFO if failures < 3 else logging.WARNING,
            "watch of %s in %s begins again: %s",
            self.resource.plural,
            self.namespace or "all namespaces",
            error,
        )
        if isinstance(error, ApiError) and error.is_expired:
            return 0
        limit_s = min(self._timing.min_backoff_s * 2.0 ** min(failures, 16), self._timing.max_backoff_s)
        self._stopping.wait(retry_after_s or random.uniform(limit_s / 2, limit_s))
        return failures + 1

    @staticmethod
    def _is_passing(error: ApiError) -> bool:
        return error.status in (429, 500, 503, 504)

    def _list(self) -> str:
        views: list[View] = []
        query = {"limit": str(PAGE), **self._selector}
        while True:
            try:
                page = self._api.list(self.resource, self.namespace, query=query)
            except ApiError as error:
                if not error.is_expired or "continue" not in query:
                    raise
                views, query = [], dict(self._selector)  # the pages' snapshot is gone: all in one
                continue
            self.progress_s = time.monotonic()
            views += [view_of(self.resource, item) for item in page.get("items") or ()]
            rest = page["metadata"].get("continue")
            if not rest:
                break
            query["continue"] = rest
        version: str = page["metadata"]["resourceVersion"]
        self._cache.replace(self.resource, self.namespace, views, version=version)
        self.is_synced.set()
        return version

    def _watch(self, version: str) -> str:
        """Follows the changes since `version`; returns where it got to, also when the connection is lost."""
        timing = self._timing
        query = {
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(timing.min_timeout_s, timing.max_timeout_s)),
            "allowWatchBookmarks": "true",
            **self._selector,
        }
        try:
            for event in self._api.watch(self.resource, self.namespace, query=query, read_timeout_s=timing.silence_s):
                version = self._seen(event, version)
                if self._stopping.is_set():
                    break
        except ApiUnavailable as error:
            self.num_restarts += 1
            self.on_restart(type(error).__name__)
            LOG.info("watch of %s was lost: %s", self.resource.plural, error)
            self._stopping.wait(random.uniform(timing.min_backoff_s / 2, timing.min_backoff_s))
            return version
        self.progress_s = time.monotonic()
        return version

    def _seen(self, event: dict[str, object], version: str) -> str:
        self.progress_s = time.monotonic()
        kind, item = event["type"], event["object"]
        assert isinstance(item, dict)
        if kind == "ERROR":
            raise ApiError(int(item.get("code", 0)), str(item.get("reason", "")), str(item.get("message", "")))
        if kind == "DELETED":
            self._cache.remove(self.resource, item)
        elif kind != "BOOKMARK":
            self._cache.put(self.resource, item)
        return str(item["metadata"]["resourceVersion"])
