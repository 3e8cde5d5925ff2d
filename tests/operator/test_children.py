"""What a job has in the cluster, what it says of itself, and what it costs; over a cluster in memory."""

from __future__ import annotations

import pytest
from operator_world.world import KEY, NAME, NAMESPACE, World, end_all, rapjob
from rap_operator.apply import Foreign
from rap_operator.resources import RAPJOBS, SERVICES


def test_a_new_job_runs_with_its_service_configs_budget_and_one_job() -> None:
    world = World()
    world.apply()
    kinds = sorted(kind for kind, _, _ in world.cluster.objects if kind not in ("Event", "RAPJob", "Pod"))
    assert kinds == ["ConfigMap", "ConfigMap", "Job", "PodDisruptionBudget", "Service"]
    assert [pod["metadata"]["labels"]["rap.dev/attempt"] for pod in world.pods] == ["1", "1"]
    assert world.status.ready == "2/2"
    assert world.condition("Running") == ("True", "AllPodsRunning")
    assert world.condition("Accepted") == ("True", "Valid")
    assert {c.type for c in world.status.conditions} == {
        *("Accepted", "Scheduled", "Running", "CheckpointFresh", "Stalled", "Degraded", "Complete", "Failed")
    }


def test_every_child_says_whose_it_is_and_of_which_generation_attempt_and_plan(world: World) -> None:
    job = world.cluster.of("RAPJob")[0]
    uid = job["metadata"]["uid"]
    world.cluster.change("RAPJob", job, status={"plan": {"hash": "feedbeef"}})
    world.edit(trainer={"nodes": 3})
    kinds = ("Service", "ConfigMap", "ConfigMap", "PodDisruptionBudget", "Job")
    children = [item for kind in dict.fromkeys(kinds) for item in world.cluster.of(kind)]
    assert len(children) == len(kinds)
    for item in children:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, True)
        assert item["metadata"]["labels"]["rap.dev/job-uid"] == uid
        assert item["metadata"]["annotations"]["rap.dev/generation"] in ("1", "2")
    (attempt,) = world.cluster.of("Job")
    assert attempt["metadata"]["annotations"]["rap.dev/generation"] == "2"
    assert attempt["metadata"]["annotations"]["rap.dev/plan-hash"] == "feedbeef"
    assert [pod["metadata"]["labels"]["rap.dev/attempt"] for pod in world.pods] == ["2", "2", "2"]
    service = world.cluster.of("Service")[0]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_creation_to_running_costs_at_most_twelve_requests() -> None:
    world = World()
    world.apply()
    mine = [call for call in world.cluster.calls if call[0] != "create" or call[1] != "RAPJob"]
    assert len(mine) <= 12, mine


def test_a_running_job_costs_no_requests(world: World) -> None:
    world.cluster.calls.clear()
    world.pass_time(3600, step_s=600)
    assert len(world.cluster.calls) <= 2, world.cluster.calls  # that its spec is stable by now is written once


def test_restarting_the_operator_does_not_disturb_a_running_job(world: World) -> None:
    world.pass_time(120)
    before = [(pod["metadata"]["uid"]) for pod in world.pods]
    world.cluster.calls.clear()
    world.restart_operator()
    world.settle()
    assert [pod["metadata"]["uid"] for pod in world.pods] == before
    assert world.cluster.calls == []


def test_deletion_leaves_nothing(world: World) -> None:
    world.delete()
    assert [item for item in world.cluster.objects if item[0] != "Event"] == []


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "PodDisruptionBudget"])
def test_a_child_deleted_by_hand_comes_back(world: World, kind: str) -> None:
    names = [item["metadata"]["name"] for item in world.cluster.of(kind)]
    for item in world.cluster.of(kind):
        world.cluster._gone(kind, item)
    world.settle()
    assert [item["metadata"]["name"] for item in world.cluster.of(kind)] == names
    assert world.attempt == 1


def test_a_child_edited_by_hand_is_mended(world: World) -> None:
    budget = world.cluster.of("PodDisruptionBudget")[0]
    world.cluster.change("PodDisruptionBudget", budget, spec={"minAvailable": 0})
    world.settle()
    assert world.cluster.of("PodDisruptionBudget")[0]["spec"]["minAvailable"] == 1


def test_a_lost_status_is_rebuilt_from_the_job_that_runs(world: World) -> None:
    end_all(world, 1)
    world.pass_time(11)
    before = [pod["metadata"]["uid"] for pod in world.pods]
    item = world.cluster.get(RAPJOBS, NAMESPACE, NAME)
    del item["status"]
    world.cluster._stored("RAPJob", item, "MODIFIED")
    world.settle()
    assert world.attempt == 2
    assert [pod["metadata"]["uid"] for pod in world.pods] == before
    assert world.status.phase == "Running"


def test_names_of_253_characters_work() -> None:
    world = World()
    body = rapjob()
    body["metadata"]["name"] = ("9odd.name-" * 26)[:252] + "x"
    world.cluster.create(RAPJOBS, NAMESPACE, body)
    world.settle()
    for kind in ("Job", "Service", "ConfigMap"):
        for item in world.cluster.of(kind):
            name = item["metadata"]["name"]
            assert len(name) <= 57
            assert name[0].isalpha()
            assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())
    assert len(world.pods) == 2


def test_the_story_is_told_by_events_in_order(world: World) -> None:
    end_all(world, 1)
    world.pass_time(11)
    assert world.event_reasons() == [
        "AttemptRecorded",
        "Running",
        "AttemptEnded",
        "AttemptRecorded",
        "Running",
    ]


def test_conditions_keep_their_transition_time_until_they_change(world: World) -> None:
    before = {c.type: c.last_transition_time for c in world.status.conditions}
    world.pass_time(120)
    world.edit(stallSeconds=61)
    after = {c.type: c.last_transition_time for c in world.status.conditions}
    assert after == before
    assert all(c.observed_generation == 2 for c in world.status.conditions)
    assert KEY == (NAMESPACE, NAME)


def test_an_object_that_has_our_name_but_another_owner_is_not_taken(world: World) -> None:
    name = world.cluster.of("Service")[0]["metadata"]["name"]
    service = world.cluster.of("Service")[0]
    world.cluster._gone("Service", service)
    foreign = {"metadata": {"name": name, "labels": {}}, "spec": {"clusterIP": "10.0.0.1"}}
    world.cluster.create(SERVICES, NAMESPACE, foreign)
    world.sync()
    with pytest.raises(Foreign, match=f"Service {name} exists and is not ours"):
        world.controller.reconcile(KEY)
    assert world.event_reasons()[-1] == "Refused"


@pytest.mark.parametrize(("step_s", "at_most"), [(1, 2), (60, 6)], ids=["quick", "slow"])
def test_pods_that_come_up_one_by_one_do_not_cost_a_status_each(step_s: float, at_most: int) -> None:
    world = World()
    world.cluster.holds_pods = True
    world.apply(trainer={"nodes": 16})
    world.cluster.calls.clear()
    ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
    for index, pod in enumerate(world.pods):
        status = {"phase": "Running", "conditions": ready}
        world.cluster.change("Pod", pod, spec={"nodeName": f"node-{index}"}, status=status)
        world.cluster.now_s += step_s
        world.settle()
    assert world.status.ready == "16/16"
    assert world.status.phase == "Running"
    assert len([call for call in world.cluster.calls if call[0] == "patch"]) <= at_most
