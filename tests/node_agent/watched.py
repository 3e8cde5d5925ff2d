"""Objects of one collection kept up to date by list and watch, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import urllib3
from servers.kube_api import KubeApi, KubeError, Object

WATCH_S = 60
RETRY_S = 0.3

OnChange = Callable[[Object, bool], None]  # the object, and whether it is gone


def ignore(_changed: Object, _is_gone: bool) -> None:
    """Do nothing: for collections that are only looked up."""


class WatchedObjects:
    """A copy of one collection; `on_change(object, is_gone)` is called for every difference seen."""

    def __init__(self, api: KubeApi, path: str, on_change: OnChange = ignore) -> None:
        self._api = api
        self._path = path
        self._on_change = on_change
        self._objects: dict[tuple[str, str], Object] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"watch-{path}")

    def start(self) -> None:
        """List once, then follow in the background."""
        version = self._list()
        self._version: str | None = version
        self._thread.start()

    def stop(self) -> None:
        """End at the next event or error; the thread is a daemon and nobody waits for it."""
        self._stopping.set()

    def all(self) -> list[Object]:
        """Return the objects known now."""
        with self._lock:
            return list(self._objects.values())

    def find(self, namespace: str, name: str) -> Object | None:
        """Return one object, None when there is none."""
        with self._lock:
            return self._objects.get((namespace, name))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._version = self._version or self._list()
                self._follow(self._version)
            except (KubeError, urllib3.exceptions.HTTPError, OSError, ValueError):
                self._version = None  # whatever happened, a fresh list is right afterwards
                self._stopping.wait(RETRY_S)

    def _list(self) -> str:
        answer = self._api.get(self._path)
        listed = {_key(item): item for item in answer["items"]}
        with self._lock:
            before, self._objects = self._objects, listed
        for key in before.keys() - listed.keys():
            self._on_change(before[key], True)
        for key, item in listed.items():
            if key not in before or _version(before[key]) != _version(item):
                self._on_change(item, False)
        return str(answer["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        for event in self._api.watch(self._path, resource_version=version, timeout_s=WATCH_S):
            if self._stopping.is_set():
                return
            if event["type"] == "ERROR":
                raise KubeError(int(event["object"].get("code", 0)), event["object"])
            self._version = _version(event["object"])
            if event["type"] != "BOOKMARK":
                self._take(event["object"], is_gone=event["type"] == "DELETED")

    def _take(self, changed: Object, *, is_gone: bool) -> None:
        with self._lock:
            if is_gone:
                self._objects.pop(_key(changed), None)
            else:
                self._objects[_key(changed)] = changed
        self._on_change(changed, is_gone)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])
