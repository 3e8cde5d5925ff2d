"""kill -9 of the operator before and after each of its requests: the same end, no duplicate, no orphan, no overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from operator_world.fake_cluster import FakeCluster, Object
from operator_world.world import World, rapjob
from rap_operator.resources import RAPJOBS, Resource

T = TypeVar("T")


class Killed(BaseException):
    """The process is gone: nothing catches this."""


class KillingApi:
    """Passes requests on, and kills the operator at one of them, before or after it takes effect."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.num_calls = 0
        self.kill_at: int | None = None
        self.has_effect = False

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> Object:
        return self._passed(lambda: self.cluster.list(resource, namespace, query=query))

    def watch(self, *args: Any, **kwargs: Any) -> Iterator[Object]:
        return self.cluster.watch(*args, **kwargs)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self._passed(lambda: self.cluster.get(resource, namespace, name))

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        return self._passed(lambda: self.cluster.create(resource, namespace, body))

    def patch(self, resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        return self._passed(lambda: self.cluster.patch(resource, namespace, name, body, subresource=subresource))

    def delete(self, resource: Resource, namespace: str, name: str, options: Object) -> None:
        self._passed(lambda: self.cluster.delete(resource, namespace, name, options))

    def _passed(self, request: Callable[[], T]) -> T:
        index, self.num_calls = self.num_calls, self.num_calls + 1
        if index == self.kill_at and not self.has_effect:
            raise Killed
        try:
            return request()
        finally:
            if index == self.kill_at and self.has_effect:
                raise Killed


def create(world: World) -> None:
    world.cluster.create(RAPJOBS, "jobs", rapjob())
    world.settle()


def fail(world: World) -> None:
    running = [pod for pod in world.pods if pod["metadata"]["labels"]["rap.dev/attempt"] == "1"]
    if running and world.attempt == 1:
        world.cluster.fail_pod(running[0], 1)
    world.settle()
    world.pass_time(12)


def resize(world: World) -> None:
    world.edit(trainer={"nodes": 3})


def suspend(world: World) -> None:
    world.edit(suspend=True)
    world.edit(suspend=False)


def delete(world: World) -> None:
    world.delete()


SCENARIOS: dict[str, tuple[Callable[[World], None], ...]] = {
    "create": (create,),
    "restart": (create, fail),
    "resize": (create, resize),
    "suspend": (create, suspend),
    "delete": (create, delete),
}


def outcome(world: World) -> dict[str, object]:
    """What a user could tell apart, names and times left out."""
    kinds = sorted(kind for kind, _, _ in world.cluster.objects if kind != "Event")
    if "RAPJob" not in kinds:
        return {"kinds": kinds}
    status = world.status
    return {
        "kinds": kinds,
        "phase": status.phase,
        "attempt": world.attempt,
        "restarts": status.restarts.model_dump(),
        "ready": status.ready,
        "pods": sorted(pod["metadata"]["labels"]["rap.dev/attempt"] for pod in world.pods),
        "conditions": {c.type: (c.status, c.reason) for c in status.conditions},
    }


def run(steps: tuple[Callable[[World], None], ...], *, kill_at: int | None = None, has_effect: bool = False) -> World:
    """Runs the steps with a kill at a request of the last one; the next operator finishes it."""
    cluster = FakeCluster()
    api = KillingApi(cluster)
    world = World(cluster, api)
    for step in steps[:-1]:
        step(world)
    api.num_calls, api.kill_at, api.has_effect = 0, kill_at, has_effect
    try:
        steps[-1](world)
    except Killed:
        api.kill_at = None
        world.restart_operator()
        world.settle()
        world.pass_time(12)
        if steps[-1] is suspend and world.cluster.get(RAPJOBS, "jobs", "clicks")["spec"].get("suspend"):
            world.edit(suspend=False)
    return world


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_kill_at_any_request_changes_nothing_about_the_end(name: str) -> None:
    steps = SCENARIOS[name]
    calm = run(steps)
    assert isinstance(calm.api, KillingApi)
    num_calls = calm.api.num_calls
    assert num_calls > 0 or name == "delete"
    for kill_at in range(num_calls):
        for has_effect in (False, True):
            world = run(steps, kill_at=kill_at, has_effect=has_effect)
            place = f"{name}: killed {'after' if has_effect else 'before'} request {kill_at}"
            assert outcome(world) == outcome(calm), place
            assert world.cluster.violations == [], place
            assert len(set(world.cluster.jobs_created)) == len(world.cluster.jobs_created), place
