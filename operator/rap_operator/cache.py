"""What the watches have seen, as small values, found by name and by the job they belong to.

Holds no truth of its own: it may lag behind the server, and everything that relies on it says how that is
made safe (a resourceVersion, a deterministic name, a live read).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from rap_operator.children import support_view
from rap_operator.resources import JOBS, PODS, RAPJOBS, Resource
from rap_operator.views import JobView, Meta, PodView, SupportView, job_view, meta_of, pod_view

Key = tuple[str, str]
"""Namespace and name."""
MAX_TOMBSTONES = 20_000  # deleted UIDs remembered, against answers that arrive after the deletion


class View(Protocol):
    """Any kept value."""

    @property
    def meta(self) -> Meta: ...


class RapJobView:
    """A RAPJob: its document without what only others need."""

    __slots__ = ("item", "meta")

    def __init__(self, item: Mapping[str, Any]) -> None:
        metadata = {k: v for k, v in item["metadata"].items() if k != "managedFields"}
        annotations = metadata.get("annotations")
        if annotations:
            metadata["annotations"] = {k: v for k, v in annotations.items() if not k.startswith("kubectl.")}
        self.item = {**item, "metadata": metadata}
        self.meta = meta_of(item)


def view_of(resource: Resource, item: Mapping[str, Any]) -> View:
    """What is kept of an object."""
    if resource is RAPJOBS:
        return RapJobView(item)
    if resource is PODS:
        return pod_view(item)
    if resource is JOBS:
        return job_view(item)
    return support_view(item, resource.kind)


class Cache:
    """All kept values; `on_change` is told the key of the RAPJob that a change concerns."""

    def __init__(self, on_change: Callable[[Key], None]) -> None:
        self._on_change = on_change
        self._lock = threading.RLock()
        self._views: dict[str, dict[Key, View]] = {}
        self._by_job: dict[tuple[str, str], dict[Key, View]] = {}
        self._keys: dict[str, Key] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        """By UID, as of which version of its kind an object was gone, or no longer had our label."""

    def replace(self, resource: Resource, namespace: str | None, views: Iterable[View], *, version: str) -> None:
        """A list's result as of a version: what is not in it is gone, unless it is younger."""
        with self._lock:
            seen = set()
            for view in views:
                seen.add(_key(view))
                self._put(resource, view)
            known = self._views.get(resource.kind, {})
            gone = [
                view
                for key, view in known.items()
                if key not in seen
                and namespace in (None, key[0])
                and not _is_newer(view.meta.resource_version, version)
            ]
            for view in gone:
                self._drop(resource, view.meta, version=version)

    def put(self, resource: Resource, item: Mapping[str, Any], *, is_news: bool = True) -> None:
        """An object as the server has it; ignored if a newer one is known or it is gone.

        `is_news`: `on_change` is told; whoever reads for the pass that follows need not be.
        """
        view = view_of(resource, item)
        with self._lock:
            self._put(resource, view, is_news=is_news)

    def remove(self, resource: Resource, item: Mapping[str, Any]) -> None:
        """An object that is gone."""
        meta = meta_of(item)
        with self._lock:
            self._drop(resource, meta, version=meta.resource_version)

    def rapjob(self, key: Key) -> RapJobView | None:
        """A RAPJob by namespace and name."""
        with self._lock:
            view = self._views.get(RAPJOBS.kind, {}).get(key)
        return view if isinstance(view, RapJobView) else None

    def rapjobs(self) -> list[RapJobView]:
        """All RAPJobs."""
        with self._lock:
            return [view for view in self._views.get(RAPJOBS.kind, {}).values() if isinstance(view, RapJobView)]

    def jobs(self, uid: str) -> tuple[JobView, ...]:
        """Jobs of a RAPJob, by attempt."""
        found = [view for view in self._of(JOBS, uid) if isinstance(view, JobView) and view.meta.owner_uid == uid]
        return tuple(sorted(found, key=lambda view: view.attempt))

    def pods(self, uid: str) -> tuple[PodView, ...]:
        """Pods of a RAPJob, by attempt and index."""
        found = [view for view in self._of(PODS, uid) if isinstance(view, PodView)]
        return tuple(sorted(found, key=lambda view: (view.attempt, view.index, view.meta.name)))

    def support(self, resource: Resource, uid: str) -> dict[str, SupportView]:
        """Services, ConfigMaps or PDBs of a RAPJob, by name."""
        return {view.meta.name: view for view in self._of(resource, uid) if isinstance(view, SupportView)}

    def sizes(self) -> dict[str, int]:
        """Number of kept values by kind."""
        with self._lock:
            return {kind: len(views) for kind, views in self._views.items()}

    def _of(self, resource: Resource, uid: str) -> list[View]:
        with self._lock:
            return list(self._by_job.get((resource.kind, uid), {}).values())

    def _put(self, resource: Resource, view: View, *, is_news: bool = True) -> None:
        key, meta = _key(view), view.meta
        gone = self._gone.get(meta.uid)
        if gone is not None and not _is_newer(meta.resource_version, gone):
            return
        self._gone.pop(meta.uid, None)  # its label was taken away and put back
        views = self._views.setdefault(resource.kind, {})
        known = views.get(key)
        if (
            known is not None
            and known.meta.uid == meta.uid
            and not _is_newer(meta.resource_version, known.meta.resource_version)
        ):
            return
        if known is not None and known.meta.uid != meta.uid:
            self._drop(resource, known.meta, version=meta.resource_version)
        views[key] = view
        if resource is RAPJOBS:
            self._keys[meta.uid] = key
        else:
            self._by_job.setdefault((resource.kind, meta.job_uid), {})[key] = view
        if is_news:
            self._tell(resource, meta)

    def _drop(self, resource: Resource, meta: Meta, *, version: str) -> None:
        self._gone[meta.uid] = version
        if len(self._gone) > MAX_TOMBSTONES:
            self._gone.popitem(last=False)
        key = (meta.namespace, meta.name)
        views = self._views.get(resource.kind, {})
        known = views.get(key)
        if known is None or known.meta.uid != meta.uid:
            return
        del views[key]
        if resource is RAPJOBS:
            self._keys.pop(meta.uid, None)
            self._on_change(key)
            return
        siblings = self._by_job.get((resource.kind, known.meta.job_uid), {})
        siblings.pop(key, None)
        if not siblings:
            self._by_job.pop((resource.kind, known.meta.job_uid), None)
        self._tell(resource, known.meta)

    def _tell(self, resource: Resource, meta: Meta) -> None:
        key = (meta.namespace, meta.name) if resource is RAPJOBS else self._keys.get(meta.job_uid)
        if key is not None:
            self._on_change(key)


def _key(view: View) -> Key:
    return view.meta.namespace, view.meta.name


def _is_newer(new: str, old: str) -> bool:
    """Resource versions of one kind are ordered numbers (guaranteed since Kubernetes 1.35, true before)."""
    return int(new) > int(old) if new.isdigit() and old.isdigit() else new != old


__all__ = ["Cache", "Key", "RapJobView", "View", "view_of"]
