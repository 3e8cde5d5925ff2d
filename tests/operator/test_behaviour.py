"""What the operator does, each behaviour a sentence; over a cluster in memory, time moved by hand."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from operator_world.world import KEY, NAME, NAMESPACE, World
from rap_contract.pod import ExitCode
from rap_operator.api import ApiError
from rap_operator.apply import Foreign
from rap_operator.observed import Telemetry
from rap_operator.resources import JOBS, PODS, RAPJOBS, SERVICES


@pytest.fixture
def world() -> World:
    made = World()
    made.apply()
    assert made.status.phase == "Running"
    return made


def end_all(world: World, exit_code: int) -> None:
    for pod in world.pods:
        world.cluster.fail_pod(pod, exit_code)
    world.settle()


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


def test_one_failed_pod_restarts_the_whole_group_after_the_delay(world: World) -> None:
    world.cluster.fail_pod(world.pods[0], 1)
    world.settle()
    assert world.pods == []
    assert world.status.phase == "Restarting"
    assert world.condition("Degraded") == ("True", "RecentFailures")
    world.pass_time(9)
    assert world.attempt == 1
    world.pass_time(2)
    assert world.attempt == 2
    assert {pod["metadata"]["labels"]["rap.dev/attempt"] for pod in world.pods} == {"2"}
    assert world.status.restarts.total == world.status.restarts.failures == 1
    assert world.status.restarts.by_reason == {"Error": 1}


def test_the_old_pods_are_gone_before_the_next_attempt_begins(world: World) -> None:
    world.cluster.lost_nodes.add("node-1")  # its kubelet confirms nothing
    world.cluster.fail_pod(world.pods[0], 1)
    world.pass_time(60)
    assert world.attempt == 1
    assert world.condition("Running") == ("False", "WaitingForOldPods")
    world.cluster.lost_nodes.clear()
    world.pass_time(5)
    assert world.attempt == 2
    assert world.cluster.violations == []


def test_pods_stuck_on_a_lost_node_are_deleted_by_force_after_the_time_out(world: World) -> None:
    world.cluster.lost_nodes.add("node-1")
    world.cluster.disrupt_pod(world.pods[1], "DeletionByTaintManager")
    world.pass_time(150)
    assert world.attempt == 1  # 120 s of grace and 60 s of patience
    world.pass_time(60)
    assert world.attempt == 2
    assert "PodForced" in world.event_reasons()
    assert world.status.restarts.failures == 0
    assert world.cluster.violations == []


def test_an_eviction_restarts_at_once_and_does_not_count(world: World) -> None:
    world.pass_time(120)
    world.cluster.disrupt_pod(world.pods[0])
    world.settle()
    assert world.attempt == 2
    assert world.status.restarts.failures == 0
    assert world.status.restarts.by_reason == {"EvictionByEvictionAPI": 1}


def test_evictions_in_quick_succession_are_slowed_down(world: World) -> None:
    for attempt in (1, 2, 3):
        world.cluster.disrupt_pod(world.pods[0])
        world.settle()
        assert world.attempt == attempt
        world.pass_time(10 * 2 ** (attempt - 1) + 1)
        assert world.attempt == attempt + 1
    assert world.status.restarts.failures == 0


def test_a_pod_deleted_by_hand_is_a_disruption(world: World) -> None:
    world.pass_time(120)
    world.cluster.delete(PODS, NAMESPACE, world.pods[0]["metadata"]["name"], {})
    world.settle()
    assert world.attempt == 2
    assert world.status.restarts.by_reason == {"PodDeleted": 1}


def test_peers_that_fail_for_want_of_a_lost_pod_do_not_count(world: World) -> None:
    world.cluster.lost_nodes.add("node-1")
    world.cluster.fail_pod(world.pods[0], ExitCode.PEER_LOST)
    world.settle()
    assert world.status.attempt is not None
    assert world.status.attempt.state == "Created"  # the cause is waited for
    world.pass_time(15)
    assert world.status.attempt is not None
    assert (world.status.attempt.end_class, world.status.attempt.end_reason) == ("Disruption", "PeerLost")


def test_the_first_failure_is_the_cause_not_the_peers_after_it(world: World) -> None:
    first, second = world.pods
    world.cluster.fail_pod(second, 137, reason="OOMKilled")
    world.cluster.now_s += 2
    world.cluster.fail_pod(first, ExitCode.PEER_LOST)
    world.settle()
    assert world.status.restarts.by_reason == {"OOMKilled": 1}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ExitCode.INVALID, "InvalidJob"),
        (ExitCode.DATA_BUDGET, "DataBudgetExceeded"),
        (ExitCode.DIVERGED, "ModelDiverged"),
    ],
)
def test_failures_that_a_restart_cannot_help_fail_the_job(world: World, code: int, reason: str) -> None:
    end_all(world, code)
    assert world.status.phase == "Failed"
    assert world.condition("Failed") == ("True", reason)
    world.pass_time(3600, step_s=600)
    assert world.attempt == 1


def test_a_rules_action_decides_by_exit_code_and_reason() -> None:
    world = World()
    rules = [
        {"exitCodes": [5], "action": "Restart"},
        {"reasons": ["OOMKilled"], "action": "Fail"},
        {"exitCodes": [77], "action": "Ignore"},
    ]
    world.apply(restartPolicy={"rules": rules})
    end_all(world, 77)
    world.pass_time(30)
    assert (world.attempt, world.status.restarts.failures) == (2, 0)
    end_all(world, 5)
    world.pass_time(30)
    assert (world.attempt, world.status.restarts.failures) == (3, 1)
    world.cluster.fail_pod(world.pods[0], 137, reason="OOMKilled")
    world.settle()
    assert world.condition("Failed") == ("True", "OOMKilled")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (json.dumps({"exitCode": 3, "message": "7 of 100 rows bad"}), "DataBudgetExceeded"),
        ("Root Cause (first observed failure):\n[0]:\n  rank : 1\n  exitcode  : 5 (pid: 42)\n", "ModelDiverged"),
        ("Root Cause (first observed failure):\n  exitcode  : -9 (pid: 42)\n", "Killed"),
        ("no idea", "Error"),
    ],
    ids=["termination message", "torchrun report", "signal", "nothing"],
)
def test_the_ranks_own_exit_code_is_found_behind_torchruns(world: World, said: str, reason: str) -> None:
    world.cluster.fail_pod(world.pods[0], 1, message=said)
    world.settle()
    assert world.status.restarts.by_reason == {reason: 1}


def test_delays_double_and_the_budget_ends_the_job(world: World) -> None:
    for attempt, delay_s in ((1, 10), (2, 20)):
        end_all(world, 1)
        world.pass_time(delay_s - 1)
        assert world.attempt == attempt
        world.pass_time(2)
        assert world.attempt == attempt + 1
    end_all(world, 1)
    assert world.status.phase == "Failed"
    assert world.status.restarts.by_reason == {"Error": 3}


def test_health_resets_budget_and_delay(world: World) -> None:
    end_all(world, 1)
    world.pass_time(11)
    assert world.condition("Degraded")[0] == "True"
    world.pass_time(3601, step_s=300)
    assert world.condition("Degraded") == ("False", "Healthy")
    end_all(world, 1)
    assert world.status.restarts.failures == 1
    world.pass_time(11)
    assert world.attempt == 3


def test_a_finished_job_is_complete_and_keeps_its_pods_for_their_logs(world: World) -> None:
    end_all(world, 0)
    assert world.status.phase == "Completed"
    assert world.condition("Complete") == ("True", "Completed")
    assert world.status.completion_time is not None
    assert len(world.pods) == 2
    world.edit(restartNonce=7)
    assert world.attempt == 1  # over is over


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


def test_deletion_leaves_nothing(world: World) -> None:
    world.delete()
    assert [item for item in world.cluster.objects if item[0] != "Event"] == []


def telemetry(world: World, **parts: float | str | bool) -> Telemetry:
    now_s = world.cluster.now_s
    base = Telemetry(attempt=world.attempt, progress_at_s=now_s, seen_at_s=now_s, checkpoint_at_s=now_s, step=5.0)
    return replace(base, **parts)  # type: ignore[arg-type]  # names are checked by replace


def test_a_step_that_stands_still_is_a_stall_and_the_attempt_is_replaced(world: World) -> None:
    world.telemetry = telemetry(world)
    world.pass_time(899, step_s=100)
    assert world.condition("Stalled") == ("False", "Progressing")
    world.pass_time(2)
    assert world.status.restarts.by_reason == {"Stalled": 1}
    world.pass_time(11)
    assert world.attempt == 2


def test_a_checkpoint_that_does_not_come_is_a_stall_too(world: World) -> None:
    world.telemetry = telemetry(world)
    for _ in range(13):
        world.telemetry = replace(world.telemetry, progress_at_s=world.cluster.now_s)
        world.pass_time(100, step_s=100)
    assert world.status.restarts.by_reason == {"Stalled": 1}


def test_without_metrics_no_stall_is_claimed(world: World) -> None:
    world.pass_time(7200, step_s=600)
    assert world.attempt == 1
    assert world.condition("Stalled") == ("Unknown", "NoMetrics")
    assert world.condition("CheckpointFresh") == ("Unknown", "NoMetrics")


def test_an_old_checkpoint_is_said(world: World) -> None:
    world.telemetry = telemetry(world)
    world.settle()
    assert world.condition("CheckpointFresh") == ("True", "Fresh")
    world.telemetry = replace(world.telemetry, checkpoint_at_s=world.cluster.now_s - 2000)
    world.settle()
    assert world.condition("CheckpointFresh") == ("False", "Old")


def test_what_was_measured_shows_in_the_status(world: World) -> None:
    world.telemetry = telemetry(
        world, samples_per_second=1234.56, exposed_percent=3.21, lag_records=7.0, may_report=True
    )
    world.telemetry = replace(world.telemetry, plan_hash="abc123")
    world.settle()
    assert world.status.metrics.samples_per_second == 1234.6
    assert world.status.plan.hash == "abc123"


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


def test_a_job_deleted_by_hand_is_a_disruption(world: World) -> None:
    world.pass_time(120)
    job = world.cluster.of("Job")[0]
    world.cluster.delete(JOBS, NAMESPACE, job["metadata"]["name"], {"propagationPolicy": "Foreground"})
    world.settle()
    assert world.attempt == 2
    assert world.status.restarts.failures == 0
    assert world.cluster.violations == []


def test_pods_orphaned_by_hand_are_removed_before_the_next_attempt(world: World) -> None:
    world.pass_time(120)
    for pod in world.pods:
        world.cluster.change("Pod", pod, metadata={"ownerReferences": []})
    job = world.cluster.of("Job")[0]
    world.cluster.delete(JOBS, NAMESPACE, job["metadata"]["name"], {})
    world.settle()
    assert world.attempt == 2
    assert world.cluster.violations == []


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


def test_a_queued_job_waits_suspended_and_a_preempted_one_begins_anew() -> None:
    world = World()
    document = world.cluster
    from operator_world.world import rapjob

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


def test_names_of_253_characters_work() -> None:
    from operator_world.world import rapjob

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
        "Accepted",
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


def test_a_cache_that_lags_does_not_make_attempts_overlap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.cluster.lost_nodes.add("node-1")
    job = world.cluster.of("Job")[0]
    world.cluster.delete(JOBS, NAMESPACE, job["metadata"]["name"], {})  # the pods outlive it
    world.round()
    monkeypatch.setattr(world.controller.cache, "pods", lambda uid: ())
    world.settle()
    world.pass_time(30)
    assert world.attempt == 2  # written down, as far as the cache knows all are gone
    assert world.cluster.of("Job") == []  # the server knows better
    world.cluster.lost_nodes.clear()
    world.pass_time(5)
    assert {pod["metadata"]["labels"]["rap.dev/attempt"] for pod in world.pods} == {"2"}
    assert world.cluster.violations == []


def test_a_trainer_asked_to_stop_by_others_is_a_disruption(world: World) -> None:
    world.pass_time(120)
    world.cluster.fail_pod(world.pods[0], ExitCode.TERMINATED)
    world.settle()
    assert world.attempt == 2
    assert world.status.restarts.failures == 0


def test_a_clock_set_back_by_a_day_does_not_stop_the_next_attempt(world: World) -> None:
    end_all(world, 1)
    world.cluster.now_s -= 86_400
    world.settle()
    assert world.attempt == 2
    fences = [world.status.attempt.recorded_at, world.status.history[0].recorded_at] if world.status.attempt else []
    assert fences[0] > fences[1]  # fences grow whatever the clock does


def test_a_clock_set_forward_by_a_day_restarts_nothing(world: World) -> None:
    world.cluster.now_s += 86_400
    world.settle()
    assert (world.attempt, world.status.phase) == (1, "Running")


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


def test_a_throttled_request_is_tried_again_no_sooner_than_the_server_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def throttled(*args: object, **kwargs: object) -> None:
        raise ApiError(429, "TooManyRequests", "slow down", retry_after_s=30)

    monkeypatch.setattr(world.cluster, "patch", throttled)
    world.cluster.fail_pod(world.pods[0], 1)
    world.sync()
    assert world.controller.work_once(timeout_s=0)
    assert 29 < min(world.controller.queue._due.values()) - time.monotonic() <= 30
