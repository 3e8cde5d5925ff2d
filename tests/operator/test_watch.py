"""The watches keep up with a server that forgets, hangs, errs and repeats itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from operator_world.fake_cluster import FakeCluster
from operator_world.world import rapjob
from rap_operator.api import ApiError, ApiUnavailable
from rap_operator.cache import Cache
from rap_operator.resources import CONFIG_MAPS, PODS, RAPJOBS, Resource
from rap_operator.watch import Reflector, Timing

FAST = Timing(min_backoff_s=0.001, max_backoff_s=0.01)


class ScriptedApi(FakeCluster):
    """A cluster whose lists and watches first do what a script says, and then stop the reflector."""

    def __init__(self, *script: Any) -> None:
        super().__init__()
        self.script = list(script)
        self.stopping = threading.Event()
        self.lists = 0
        self.watched_from: list[str] = []

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> dict[str, Any]:
        self.lists += 1
        return super().list(resource, namespace, query=query)

    def watch(
        self, resource: Resource, namespace: str | None, *, query: Mapping[str, str], read_timeout_s: float
    ) -> Iterator[dict[str, Any]]:
        self.watched_from.append(query["resourceVersion"])
        if not self.script:
            self.stopping.set()
            return
        act = self.script.pop(0)
        if isinstance(act, Exception):
            raise act
        if callable(act):
            act(self)
            yield from super().watch(resource, namespace, query=query, read_timeout_s=read_timeout_s)
        else:
            yield act

    def reflected(self, resource: Resource = RAPJOBS) -> tuple[Cache, Reflector]:
        """Runs a reflector until the script is over."""
        cache = Cache(lambda key: None)
        reflector = Reflector(self, cache, resource, None, stopping=self.stopping, timing=FAST)
        reflector.run()
        return cache, reflector


def create(name: str) -> Any:
    def act(api: ScriptedApi) -> None:
        job = rapjob()
        job["metadata"]["name"] = name
        api.create(RAPJOBS, "jobs", job)

    return act


def delete(name: str) -> Any:
    return lambda api: api.delete(RAPJOBS, "jobs", name, {})


EXPIRED = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version"}}


def names(cache: Cache) -> list[str]:
    return sorted(view.meta.name for view in cache.rapjobs())


def test_changes_arrive_and_a_watch_that_ends_is_taken_up_where_it_was() -> None:
    api = ScriptedApi(create("a"), create("b"), delete("a"))
    cache, reflector = api.reflected()
    assert names(cache) == ["b"]
    assert api.lists == 1
    assert reflector.num_restarts == 0


@pytest.mark.parametrize("expiry", [EXPIRED, ApiError(410, "Gone", "too old")], ids=["event", "status"])
def test_a_version_the_server_forgot_is_listed_anew(expiry: Any) -> None:
    def missed(api: ScriptedApi) -> None:  # happened while nobody watched
        create("late")(api)
        api.delete(RAPJOBS, "jobs", "a", {})

    api = ScriptedApi(create("a"), expiry)
    first_list = api.list

    def list_after_misses(resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> dict[str, Any]:
        if api.lists == 1:
            missed(api)
        return first_list(resource, namespace, query=query)

    api.list = list_after_misses  # type: ignore[method-assign]  # what happens between watch and list
    cache, _ = api.reflected()
    assert names(cache) == ["late"]
    assert api.lists == 2


@pytest.mark.parametrize(
    "trouble",
    [ApiUnavailable("silence"), ApiError(429, "TooManyRequests", "wait", retry_after_s=0.01), ApiError(503, "", "")],
    ids=["half-open", "throttled", "unavailable"],
)
def test_a_watch_that_breaks_goes_on_without_a_new_list(trouble: Exception) -> None:
    api = ScriptedApi(create("a"), trouble, create("b"))
    cache, reflector = api.reflected()
    assert names(cache) == ["a", "b"]
    assert api.lists == 1
    assert reflector.num_restarts == 1


def test_an_event_that_cannot_be_read_leads_to_a_new_list_not_to_a_dead_watch() -> None:
    api = ScriptedApi(create("a"), {"type": "ADDED", "object": {"kind": "RAPJob"}}, create("b"))
    cache, _ = api.reflected()
    assert names(cache) == ["a", "b"]
    assert api.lists == 2


def test_a_bookmark_moves_the_place_to_go_on_from() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "4711"}}}
    api = ScriptedApi(bookmark)
    api.reflected()
    assert api.watched_from[-1] == "4711"


def test_old_events_and_late_answers_do_not_undo_newer_ones() -> None:
    api = FakeCluster()
    cache = Cache(lambda key: None)
    old = api.create(RAPJOBS, "jobs", rapjob())
    new = api.patch(RAPJOBS, "jobs", "clicks", {"spec": {"suspend": True}})
    cache.put(RAPJOBS, new)
    cache.put(RAPJOBS, old)
    view = cache.rapjob(("jobs", "clicks"))
    assert view is not None
    assert view.item["spec"]["suspend"] is True
    cache.remove(RAPJOBS, new)
    cache.put(RAPJOBS, new)  # an answer to a patch, read after the deletion
    assert cache.rapjob(("jobs", "clicks")) is None


def test_a_child_whose_label_was_taken_away_and_put_back_is_seen_again() -> None:
    cache = Cache(lambda key: None)

    def config(version: int) -> dict[str, Any]:
        labels = {"rap.dev/job-uid": "u"}
        return {
            "metadata": {
                "name": "c",
                "namespace": "jobs",
                "uid": "1",
                "labels": labels,
                "resourceVersion": str(version),
            }
        }

    cache.put(CONFIG_MAPS, config(9))
    cache.remove(CONFIG_MAPS, config(10))  # what a watch with a selector says of it
    cache.put(CONFIG_MAPS, config(10))
    assert cache.support(CONFIG_MAPS, "u") == {}
    cache.put(CONFIG_MAPS, config(11))
    assert list(cache.support(CONFIG_MAPS, "u")) == ["c"]


def test_a_list_does_not_remove_what_was_made_after_it() -> None:
    api = FakeCluster()
    cache = Cache(lambda key: None)
    before = api.create(RAPJOBS, "jobs", rapjob())
    cache.put(RAPJOBS, before)
    version = before["metadata"]["resourceVersion"]
    job = rapjob()
    job["metadata"]["name"] = "later"
    cache.put(RAPJOBS, api.create(RAPJOBS, "jobs", job))
    cache.replace(RAPJOBS, None, [], version=version)
    assert names(cache) == ["later"]
    cache.put(RAPJOBS, before)
    assert names(cache) == ["later"]


def test_a_job_created_again_under_its_name_is_another_job() -> None:
    api = FakeCluster()
    changed: list[tuple[str, str]] = []
    cache = Cache(changed.append)
    first = api.create(RAPJOBS, "jobs", rapjob())
    cache.put(RAPJOBS, first)
    api.delete(RAPJOBS, "jobs", "clicks", {})
    second = api.create(RAPJOBS, "jobs", rapjob())
    cache.put(RAPJOBS, second)
    cache.remove(RAPJOBS, first)  # the deletion is seen last
    view = cache.rapjob(("jobs", "clicks"))
    assert view is not None
    assert view.meta.uid == second["metadata"]["uid"]


def test_what_is_kept_of_an_object_leaves_out_what_only_others_need() -> None:
    api = FakeCluster()
    job = rapjob()
    job["metadata"] |= {
        "managedFields": [{"manager": "x"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "...", "rap.dev/kept": "1"},
    }
    cache = Cache(lambda key: None)
    cache.put(RAPJOBS, api.create(RAPJOBS, "jobs", job))
    view = cache.rapjob(("jobs", "clicks"))
    assert view is not None
    assert "managedFields" not in view.item["metadata"]
    assert view.item["metadata"]["annotations"] == {"rap.dev/kept": "1"}


def test_a_foreign_pod_with_our_labels_wakes_nobody_and_is_nobodys() -> None:
    woken: list[tuple[str, str]] = []
    cache = Cache(woken.append)
    pod = {"metadata": {"name": "p", "namespace": "jobs", "uid": "1", "labels": {"rap.dev/job-uid": "no-such"}}}
    cache.put(PODS, pod)
    assert woken == []


def test_lists_come_in_pages_and_a_page_that_expired_brings_the_whole_list() -> None:
    class Paged(ScriptedApi):
        def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> dict[str, Any]:
            whole = super().list(resource, namespace, query=query)
            if "limit" not in query:
                return whole
            if "continue" in query:
                raise ApiError(410, "Expired", "the continue token is too old")
            return {"items": whole["items"][:1], "metadata": {**whole["metadata"], "continue": "token"}}

    api = Paged()
    for name in ("a", "b", "c"):
        create(name)(api)
    cache, _ = api.reflected()
    assert names(cache) == ["a", "b", "c"]
