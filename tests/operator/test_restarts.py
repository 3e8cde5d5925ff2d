"""When a group ends, why, and when it starts again; over a cluster in memory, time moved by hand."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from operator_world.world import NAMESPACE, World, end_all, telemetry
from rap_contract.pod import ExitCode
from rap_operator.api import ApiError
from rap_operator.resources import JOBS, PODS


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


def test_a_step_that_stands_still_is_a_stall_and_the_attempt_is_replaced(world: World) -> None:
    world.telemetry = telemetry(world)
    world.pass_time(899, step_s=100)
    assert world.condition("Stalled") == ("False", "Progressing")
    world.pass_time(2)
    assert world.status.restarts.by_reason == {"Stalled": 1}
    world.pass_time(11)
    assert world.attempt == 2


def test_a_stall_time_of_nought_means_never() -> None:
    world = World()
    world.apply(stallSeconds=0)
    world.telemetry = telemetry(world)
    world.pass_time(7200, step_s=600)
    assert (world.status.phase, world.attempt) == ("Running", 1)


def test_a_checkpoint_that_does_not_come_is_a_stall_too(world: World) -> None:
    world.telemetry = telemetry(world)
    for _ in range(13):
        world.telemetry = replace(world.telemetry, progress_at_s=world.cluster.now_s)
        world.pass_time(100, step_s=100)
    assert world.status.restarts.by_reason == {"Stalled": 1}


def test_a_job_that_is_asked_rarely_has_not_stalled_since_it_was_asked(world: World) -> None:
    world.telemetry = telemetry(world, asked_at_s=world.cluster.now_s)
    world.pass_time(7200, step_s=600)
    assert (world.status.phase, world.attempt) == ("Running", 1)
    assert world.condition("CheckpointFresh") == ("True", "Fresh")
    world.telemetry = replace(world.telemetry, asked_at_s=world.cluster.now_s)
    world.pass_time(2)
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
