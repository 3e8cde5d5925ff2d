"""What the user says and changes, and what the operator makes of it; over a cluster in memory."""

from __future__ import annotations

import pytest
from operator_world.world import NAME, NAMESPACE, World, end_all, rapjob
from rap_contract.pod import ExitCode
from rap_operator.resources import RAPJOBS


def test_a_finished_job_is_complete_and_keeps_its_pods_for_their_logs(world: World) -> None:
    end_all(world, 0)
    assert world.status.phase == "Completed"
    assert world.condition("Complete") == ("True", "Completed")
    assert world.status.completion_time is not None
    assert len(world.pods) == 2
    world.edit(restartNonce=7)
    assert world.attempt == 1  # over is over


def test_a_failed_job_keeps_its_pods_for_their_logs(world: World) -> None:
    for pod in world.pods:
        world.cluster.fail_pod(pod, ExitCode.INVALID)
    for _ in range(3):
        world.pass_once()  # sooner than the Job's own controller
    world.settle()
    assert world.status.phase == "Failed"
    assert len(world.pods) == 2


def test_suspension_ends_the_attempt_and_resumption_begins_another(world: World) -> None:
    world.edit(suspend=True)
    assert world.status.phase == "Suspended"
    assert world.pods == []
    assert world.cluster.of("Job") == []
    world.cluster.calls.clear()
    world.pass_time(3600, step_s=600)
    assert world.cluster.calls == []  # a suspended job is not looked after in circles
    world.edit(suspend=False)
    assert world.status.phase == "Running"
    assert world.attempt == 2
    assert world.status.restarts.failures == 0
    assert world.cluster.violations == []


def test_a_job_created_suspended_starts_nothing() -> None:
    world = World()
    world.apply(suspend=True)
    assert world.status.phase == "Suspended"
    assert world.cluster.of("Job") == []


def test_a_resize_restarts_with_the_new_number_of_pods(world: World) -> None:
    world.edit(trainer={"nodes": 3})
    assert world.attempt == 2
    assert len(world.pods) == 3
    assert world.cluster.of("PodDisruptionBudget")[0]["spec"]["minAvailable"] == 2
    assert world.cluster.violations == []


def test_a_resize_to_one_node_needs_no_budget(world: World) -> None:
    world.edit(trainer={"nodes": 1})
    assert len(world.pods) == 1
    assert world.cluster.of("PodDisruptionBudget") == []


def test_the_operators_own_fields_take_effect_without_a_restart(world: World) -> None:
    before = [pod["metadata"]["uid"] for pod in world.pods]
    world.edit(restartPolicy={"maxRestarts": 0}, stallSeconds=60)
    assert [pod["metadata"]["uid"] for pod in world.pods] == before
    end_all(world, 1)
    assert world.status.phase == "Failed"


def test_a_deadline_fails_the_job_and_removes_its_pods() -> None:
    world = World()
    world.apply(activeDeadlineSeconds=100)
    world.pass_time(99)
    assert world.status.phase == "Running"
    world.pass_time(2)
    assert world.condition("Failed") == ("True", "DeadlineExceeded")
    assert world.pods == []


def test_a_deadline_counts_also_while_the_job_waits_to_restart() -> None:
    world = World()
    world.apply(activeDeadlineSeconds=20, restartPolicy={"delaySeconds": 60})
    end_all(world, 1)
    world.pass_time(25)
    assert world.condition("Failed") == ("True", "DeadlineExceeded")


def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    world = World()
    world.apply(ttlSecondsAfterFinished=100)
    end_all(world, 0)
    world.pass_time(95)
    assert world.status.phase == "Completed"
    world.pass_time(10)
    assert [item for item in world.cluster.objects if item[0] != "Event"] == []


def test_an_invalid_new_spec_never_stops_the_running_job(world: World) -> None:
    before = [pod["metadata"]["uid"] for pod in world.pods]
    world.edit(label="no_such_column")
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Degraded") == ("True", "InvalidSpec")
    assert [pod["metadata"]["uid"] for pod in world.pods] == before
    end_all(world, 1)
    world.pass_time(11)
    assert world.attempt == 2  # the last valid spec is the one that runs
    assert len(world.pods) == 2
    world.edit(label="label")
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.attempt == 2


def test_an_invalid_first_spec_starts_nothing_and_says_why() -> None:
    world = World()
    world.apply(label="no_such_column")
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    message = next(c.message for c in world.status.conditions if c.type == "Accepted")
    assert "no_such_column" in message
    assert world.cluster.of("Job") == []


def test_suspension_is_honoured_even_in_an_invalid_spec(world: World) -> None:
    world.edit(label="no_such_column", suspend=True)
    assert world.status.phase == "Suspended"


def test_a_change_the_state_cannot_survive_is_refused_while_running(world: World) -> None:
    world.edit(checkpoint={"path": "/elsewhere"})
    assert world.condition("Accepted") == ("False", "SpecChangeRefused")
    assert world.attempt == 1
    world.edit(checkpoint={"path": "/checkpoints/clicks"})
    assert world.condition("Accepted") == ("True", "Valid")


def test_suspend_change_resume_is_allowed(world: World) -> None:
    world.edit(suspend=True)
    world.edit(checkpoint={"path": "/elsewhere"}, trainer={"nodes": 1})
    assert world.condition("Accepted") == ("True", "Valid")
    world.edit(suspend=False)
    assert (world.status.phase, len(world.pods)) == ("Running", 1)


def test_a_changed_spec_that_keeps_failing_is_rolled_back(world: World) -> None:
    world.pass_time(61)
    world.edit(trainer={"batchSizePerGpu": 999_999})
    assert world.attempt == 2
    for _ in range(2):
        end_all(world, 1)
        world.pass_time(30)
    assert world.condition("Accepted") == ("False", "RolledBack")
    assert world.condition("Degraded") == ("True", "RolledBack")
    assert world.status.phase == "Running"
    assert "RolledBack" in world.event_reasons()
    world.pass_time(600)
    assert world.attempt == 4  # the rejected spec is not tried again
    world.edit(trainer={"batchSizePerGpu": 512})
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.attempt == 5


def test_a_changed_spec_that_never_starts_is_rolled_back_in_time(world: World) -> None:
    world.pass_time(61)
    world.cluster.holds_pods = True
    world.edit(trainer={"nodes": 3})
    world.pass_time(599, step_s=30)
    assert world.attempt == 2
    world.cluster.holds_pods = False
    world.pass_time(2)
    world.pass_time(30)
    if world.attempt == 2:  # it came up in the last second, and is stable by now
        pytest.fail("the spec was not rolled back")
    assert len(world.pods) == 2


def test_returning_to_the_stable_spec_ends_the_rollback(world: World) -> None:
    world.pass_time(61)
    world.edit(trainer={"batchSizePerGpu": 999_999})
    for _ in range(2):
        end_all(world, 1)
        world.pass_time(30)
    world.edit(trainer={"batchSizePerGpu": 4096})
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.condition("Degraded")[1] != "RolledBack"


def test_time_spent_suspended_or_queued_does_not_count_against_a_changed_spec(world: World) -> None:
    world.pass_time(61)
    world.edit(suspend=True, trainer={"nodes": 3})
    world.pass_time(3600, step_s=600)
    world.edit(suspend=False)
    world.pass_time(70)
    assert len(world.pods) == 3
    assert world.condition("Accepted") == ("True", "Valid")


def test_a_first_spec_has_nothing_to_roll_back_to() -> None:
    world = World()
    world.apply()
    for _ in range(3):
        end_all(world, 1)
        world.pass_time(100)
    assert world.status.phase == "Failed"


def test_the_pause_annotation_stops_everything_and_says_so(world: World) -> None:
    world.annotate("rap.dev/pause-reconciliation", "true")
    world.cluster.fail_pod(world.pods[0], 1)
    world.settle()
    world.edit(suspend=True)
    assert world.status.attempt is not None
    assert world.status.attempt.state == "Created"
    assert world.condition("Paused") == ("True", "Annotated")
    world.annotate("rap.dev/pause-reconciliation", None)
    world.settle()
    assert world.status.phase == "Suspended"
    assert all(c.type != "Paused" for c in world.status.conditions)


def test_a_new_restart_nonce_restarts_once(world: World) -> None:
    world.edit(restartNonce=1)
    assert world.attempt == 2
    assert world.status.restarts.by_reason == {"RestartRequested": 1}
    world.pass_time(600)
    assert world.attempt == 2


def test_a_job_managed_elsewhere_is_left_alone() -> None:
    world = World()
    world.apply(managedBy="kueue.x-k8s.io/multikueue")
    assert "status" not in world.cluster.get(RAPJOBS, NAMESPACE, NAME)
    assert world.cluster.of("Job") == []


def test_a_queued_job_waits_suspended_and_a_preempted_one_begins_anew() -> None:
    world = World()
    document = world.cluster
    body = rapjob()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    document.create(RAPJOBS, NAMESPACE, body)
    world.settle()
    job = world.cluster.of("Job")[0]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert world.condition("Scheduled") == ("False", "Queued")
    world.cluster.change("Job", job, spec={"suspend": False})
    world.settle()
    assert world.status.phase == "Running"
    world.cluster.change("Job", world.cluster.of("Job")[0], spec={"suspend": True})
    world.settle()
    world.pass_time(30)
    assert world.attempt == 2
    assert world.condition("Scheduled") == ("False", "Queued")
    assert world.status.restarts.failures == 0
    assert world.cluster.violations == []


def test_specs_no_longer_needed_are_removed(world: World) -> None:
    world.pass_time(61)
    for batch in (100, 200, 300):
        world.edit(trainer={"batchSizePerGpu": batch})
        world.pass_time(61)
    specs = [c for c in world.cluster.of("ConfigMap") if "-spec-" in c["metadata"]["name"]]
    assert len(specs) == 1
