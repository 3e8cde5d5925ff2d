"""Servers that refuse, answer late or not at all, and rivals that write too: over a cluster in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from operator_world.fake_cluster import FakeCluster, Object
from operator_world.world import KEY, NAME, NAMESPACE, World, rapjob
from rap_contract.status import EndClass, Phase
from rap_operator.api import ApiError, ApiUnavailable
from rap_operator.resources import JOBS, RAPJOBS, Resource

T = TypeVar("T")
KUEUE = "kueue.x-k8s.io/queue-name"


class WrappedApi:
    """Passes every request of one operator on through `passed`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.num_writes = 0

    def passed(self, request: Callable[[], T], *, is_write: bool) -> T:
        """What becomes of a request."""
        self.num_writes += is_write
        return request()

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> Object:
        return self.passed(lambda: self.cluster.list(resource, namespace, query=query), is_write=False)

    def watch(self, *args: Any, **kwargs: Any) -> Iterator[Object]:
        return self.cluster.watch(*args, **kwargs)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self.passed(lambda: self.cluster.get(resource, namespace, name), is_write=False)

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        return self.passed(lambda: self.cluster.create(resource, namespace, body), is_write=True)

    def patch(self, resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        return self.passed(
            lambda: self.cluster.patch(resource, namespace, name, body, subresource=subresource), is_write=True
        )

    def delete(self, resource: Resource, namespace: str, name: str, options: Object) -> None:
        self.passed(lambda: self.cluster.delete(resource, namespace, name, options), is_write=True)


class SlowApi(WrappedApi):
    """Each answer takes 20 s, and the cluster goes on meanwhile."""

    def passed(self, request: Callable[[], T], *, is_write: bool) -> T:
        answer = super().passed(request, is_write=is_write)
        self.cluster.now_s += 20
        self.cluster.tick()
        return answer


class ForgetfulApi(WrappedApi):
    """Every third request takes effect, but its answer never comes."""

    def passed(self, request: Callable[[], T], *, is_write: bool) -> T:
        answer = super().passed(request, is_write=is_write)
        if is_write and self.num_writes % 3 == 0:
            raise ApiUnavailable("read timed out")
        return answer


class LeasedApi(WrappedApi):
    """Writes nothing more once the lease is lost, which happens before a given write."""

    def __init__(self, cluster: FakeCluster, *, lost_at: int) -> None:
        super().__init__(cluster)
        self.lost_at = lost_at

    def passed(self, request: Callable[[], T], *, is_write: bool) -> T:
        if is_write and self.num_writes >= self.lost_at:
            raise ApiUnavailable("this process no longer leads: nothing is written")
        return super().passed(request, is_write=is_write)


def kill_one(world: World) -> None:
    world.cluster.fail_pod(world.pods[0], 137)


@pytest.mark.parametrize("api", [SlowApi, ForgetfulApi], ids=["slow", "forgetful"])
def test_answers_that_come_late_or_never_cost_time_and_nothing_else(api: type[WrappedApi]) -> None:
    cluster = FakeCluster()
    world = World(cluster, api(cluster))
    world.tolerates = (ApiUnavailable,)
    world.apply()
    kill_one(world)
    world.pass_time(30)
    world.edit(suspend=True)
    assert (world.status.phase, world.pods) == (Phase.SUSPENDED, [])
    world.edit(suspend=False, trainer={"nodes": 3})
    assert (world.status.phase, world.status.ready, world.attempt) == (Phase.RUNNING, "3/3", 3)
    assert world.status.restarts.by_reason == {"Killed": 1, "Suspended": 1}
    assert (cluster.violations, len(cluster.jobs_created)) == ([], 3)
    world.delete()
    assert [key for key in cluster.objects if key[0] != "Event"] == []


def test_a_lease_lost_in_the_middle_of_a_pass_leaves_the_rest_to_the_next_leader() -> None:
    for lost_at in range(30):
        cluster = FakeCluster()
        loser = World(cluster, LeasedApi(cluster, lost_at=lost_at))
        loser.tolerates = (ApiUnavailable,)
        cluster.create(RAPJOBS, NAMESPACE, rapjob())
        loser.settle()
        if not loser.refused:
            assert lost_at >= 9  # all of its writes from creation to Running, but for an event nobody misses
            return
        winner = World(cluster)
        winner.settle()
        version = cluster.version
        loser.round()  # a loser that goes on for a moment writes nothing
        assert cluster.version == version
        assert (winner.status.phase, winner.attempt, len(winner.pods)) == (Phase.RUNNING, 1, 2)
        assert (cluster.violations, len(cluster.jobs_created)) == ([], 1)
    raise AssertionError("30 writes from creation to Running")


@pytest.mark.parametrize("seed", range(8))
def test_two_operators_that_both_believe_they_lead_do_no_harm(seed: int) -> None:
    draw = random.Random(seed)
    cluster = FakeCluster()
    worlds = [World(cluster), World(cluster)]
    cluster.create(RAPJOBS, NAMESPACE, rapjob(restartPolicy={"delaySeconds": 0, "maxRestarts": 50}))
    for _ in range(60):
        for world in draw.sample(worlds, 2):
            world.pass_once(lag=draw.choice([0, 0, 3, 9]))
            cluster.now_s += draw.choice([0.0, 1.0])
        if draw.random() < 0.7:
            cluster.tick()
        running = [pod for pod in cluster.of("Pod") if pod.get("status", {}).get("phase") == "Running"]
        if running and draw.random() < 0.15:
            cluster.fail_pod(draw.choice(running), draw.choice([1, 137]))
    for _ in range(30):
        for world in worlds:
            world.round()
        cluster.now_s += 11
    status = worlds[0].status
    assert status.phase == Phase.RUNNING
    assert status.attempt is not None
    assert {pod["metadata"]["labels"]["rap.dev/attempt"] for pod in cluster.of("Pod")} == {str(status.attempt.number)}
    assert cluster.violations == []
    assert len(set(cluster.jobs_created)) == len(cluster.jobs_created) == status.attempt.number
    assert sum(status.restarts.by_reason.values()) == status.attempt.number - 1


def test_a_status_somebody_else_wrote_in_between_is_read_again_and_not_overwritten(world: World) -> None:
    world.cluster.patch(RAPJOBS, NAMESPACE, NAME, {"spec": {"stallSeconds": 61}})
    world.sync()
    world.cluster.patch(RAPJOBS, NAMESPACE, NAME, {"metadata": {"labels": {"team": "ads"}}})
    with pytest.raises(ApiError, match="409"):
        world.controller.reconcile(KEY)
    world.settle()
    assert world.status.observed_generation == 2
    assert world.cluster.get(RAPJOBS, NAMESPACE, NAME)["metadata"]["labels"]["team"] == "ads"


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "PodDisruptionBudget", "Job"])
def test_what_a_webhook_or_a_quota_refuses_is_said_and_made_once_it_yields(kind: str) -> None:
    world = World()
    world.tolerates = (ApiError,)
    world.cluster.refuses = {kind: "admission webhook denied the request: no"}
    world.apply()
    world.pass_time(120, step_s=30)
    assert world.condition("Scheduled") == ("False", "Refused")
    message = next(c.message for c in world.status.conditions if c.type == "Scheduled")
    assert "admission webhook denied the request: no" in message
    assert world.event_reasons().count("Refused") == 1
    assert world.attempt == (0 if kind == "ConfigMap" else 1)  # an attempt is recorded once its spec is stored
    calls = len(world.cluster.calls)
    world.round()
    assert len(world.cluster.calls) - calls <= 4  # the refused request, not a status or an event each time
    world.cluster.refuses = {}
    world.settle()
    assert (world.status.phase, world.attempt, world.status.restarts.failures) == (Phase.RUNNING, 1, 0)
    assert world.condition("Scheduled") == ("True", "AllPodsScheduled")


def test_a_new_spec_that_may_not_be_stored_stops_neither_the_old_one_nor_its_restarts(world: World) -> None:
    world.cluster.refuses = {"ConfigMap": "exceeded quota: configmaps"}
    world.edit(checkpoint={"intervalSeconds": 61})
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    message = next(c.message for c in world.status.conditions if c.type == "Accepted")
    assert "exceeded quota" in message
    assert "the last valid spec stays in force" in message
    kill_one(world)
    world.settle()
    world.pass_time(11)
    assert (world.status.phase, world.attempt, len(world.pods)) == (Phase.RUNNING, 2, 2)
    world.cluster.refuses = {}
    world.settle()
    assert (world.status.phase, world.attempt) == (Phase.RUNNING, 3)
    assert world.condition("Accepted") == ("True", "Valid")


@pytest.mark.parametrize("parallelism", [1, 3, 0])
def test_a_running_jobs_size_edited_by_hand_starts_a_new_attempt_of_the_right_size(
    world: World, parallelism: int
) -> None:
    job = world.cluster.of("Job")[0]
    world.cluster.patch(JOBS, NAMESPACE, job["metadata"]["name"], {"spec": {"parallelism": parallelism}})
    world.settle()
    world.pass_time(11)  # a disruption in the first minute waits for the delay
    assert (world.status.phase, world.attempt, len(world.pods)) == (Phase.RUNNING, 2, 2)
    assert world.status.history[0].end_reason == "JobEdited"
    assert world.status.history[0].end_class == EndClass.DISRUPTION
    assert world.status.restarts.failures == 0


def test_a_running_job_suspended_by_hand_is_replaced(world: World) -> None:
    job = world.cluster.of("Job")[0]
    world.cluster.patch(JOBS, NAMESPACE, job["metadata"]["name"], {"spec": {"suspend": True}})
    world.settle()
    world.pass_time(11)
    assert (world.status.phase, world.attempt) == (Phase.RUNNING, 2)
    assert world.status.history[0].end_reason == "Preempted"


@pytest.mark.parametrize("label", ["rap.dev/attempt", "rap.dev/job-uid"])
def test_a_job_whose_labels_were_removed_by_hand_is_replaced_and_nothing_overlaps(world: World, label: str) -> None:
    job = world.cluster.of("Job")[0]
    world.cluster.patch(JOBS, NAMESPACE, job["metadata"]["name"], {"metadata": {"labels": {label: None}}})
    world.settle()
    world.pass_time(90, step_s=30)
    assert (world.status.phase, len(world.pods)) == (Phase.RUNNING, 2)
    assert world.cluster.violations == []


def test_labels_and_annotations_for_queues_and_gang_schedulers_reach_the_job() -> None:
    world = World()
    job = rapjob(trainer={"podTemplate": {"spec": {"schedulerName": "volcano", "priorityClassName": "high"}}})
    job["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g", "team": "ads"}
    job["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "gpus", "note": "mine"}
    world.cluster.create(RAPJOBS, NAMESPACE, job)
    world.settle()
    made = world.cluster.of("Job")[0]
    assert made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "g"
    assert made["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "gpus"
    assert made["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "2"
    assert not {"team", "note"} & {*made["metadata"]["labels"], *made["metadata"]["annotations"]}
    assert made["spec"]["template"]["spec"]["priorityClassName"] == "high"
    assert not made["spec"]["suspend"]


def test_only_a_queues_name_makes_jobs_wait_suspended() -> None:
    world = World()
    job = rapjob()
    job["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "high"}
    world.cluster.create(RAPJOBS, NAMESPACE, job)
    world.settle()
    assert world.status.phase == Phase.RUNNING
    assert world.cluster.of("Job")[0]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert KUEUE not in world.cluster.of("Job")[0]["metadata"]["labels"]
