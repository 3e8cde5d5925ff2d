"""A process that starts, or waits to lead: what it does before it knows the whole world."""

from __future__ import annotations

import pytest
from operator_world.fake_cluster import FakeCluster
from operator_world.world import KEY, NAME, NAMESPACE, World
from rap_operator.api import Api, ApiError, ApiUnavailable
from rap_operator.controller import Controller
from rap_operator.exposition import Exposition
from rap_operator.resources import PODS, RAPJOBS, Resource
from rap_operator.watch import Timing


@pytest.fixture
def world() -> World:
    """A job that runs, and an operator started anew that knows the RAPJob alone."""
    made = World()
    made.apply()
    made.restart_operator()
    made.controller.cache.put(RAPJOBS, made.cluster.get(RAPJOBS, NAMESPACE, NAME))
    return made


def pass_once(world: World) -> None:
    assert world.controller.work_once(timeout_s=0)


def test_a_job_whose_children_are_not_listed_yet_is_left_as_it_runs(world: World) -> None:
    made, version = list(world.cluster.jobs_created), world.cluster.version
    pass_once(world)
    assert (world.cluster.jobs_created, world.cluster.version) == (made, version)
    assert world.controller.queue.depth == 0  # what was read for the pass asks for no other


def test_a_failure_while_no_operator_ran_is_seen_before_all_lists_are_in(world: World) -> None:
    world.cluster.fail_pod(world.pods[0], 1)
    pass_once(world)
    assert world.status.attempt is not None
    assert world.status.attempt.exit_code == 1
    for _ in range(30):
        world.cluster.now_s += 1.0
        world.controller.cache.put(RAPJOBS, world.cluster.get(RAPJOBS, NAMESPACE, NAME))
        world.controller.queue.add(KEY)
        pass_once(world)
        world.cluster.tick()
    assert world.attempt == 1  # that the old pods are gone is for the lists to say
    world.pass_time(30)
    assert (world.attempt, world.cluster.violations) == (2, [])


def test_a_job_whose_children_cannot_be_read_is_left_alone_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = world.cluster.list

    def refused(resource: Resource, namespace: str | None, *, query: dict[str, str]) -> dict[str, object]:
        if resource is PODS:
            raise ApiError(500, "InternalError", "etcd is away")
        return whole(resource, namespace, query=query)

    monkeypatch.setattr(world.cluster, "list", refused)
    version = world.cluster.version
    pass_once(world)
    assert world.cluster.version == version
    assert KEY in world.controller.queue._due


class Away(FakeCluster):
    """A server that answers no list."""

    def list(self, resource: Resource, namespace: str | None, *, query: object) -> dict[str, object]:
        raise ApiUnavailable("not now")


def test_a_replica_that_waits_to_lead_keeps_its_cache_and_works_on_all_of_it_when_it_leads() -> None:
    api: Api = Away()
    controller = Controller(api, timing=Timing(min_backoff_s=60, max_backoff_s=60))
    controller.watch()
    job = World().cluster.create(RAPJOBS, NAMESPACE, {"metadata": {"name": NAME}, "spec": {}})
    controller.cache.put(RAPJOBS, job)
    page = Exposition(controller, version="1").page
    assert controller.queue.depth == 0
    assert b"rap_operator_jobs{" not in page()  # the leader counts them
    controller.work(workers=0)
    assert controller.queue.depth == 1
    assert b'rap_operator_jobs{phase="Pending"} 1.0' in page()
    controller.stop()
