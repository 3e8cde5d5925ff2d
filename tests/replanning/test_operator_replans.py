"""The operator changes plans: the whole story on a cluster in memory, and everything that may go wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from operator_world.fake_cluster import FakeCluster
from operator_world.world import NAME, NAMESPACE
from rap_operator.replanning.gates import FAILED_AGAIN_S
from rap_operator.replanning.values import RankPage
from rap_operator.resources import CONFIG_MAPS
from replanning.replan_world import BETTER, DEFAULT, Killed, KillingApi, ReplanWorld, Trainer

STORY = [("Applying", "WorkloadDrift"), ("Switched", "WorkloadDrift"), ("Confirmed", "Effective")]


def settled(world: ReplanWorld, name: str = NAME, **replanning: object) -> Trainer:
    """A job that has been judged once and is steady."""
    trainer = world.add(name, **replanning)
    world.live(200)
    assert world.condition("Replanning") == ("False", "Steady")
    return trainer


@pytest.fixture
def world() -> ReplanWorld:
    return ReplanWorld()


def test_drift_changes_the_plan_of_a_running_job_and_the_status_tells_the_story(world: ReplanWorld) -> None:
    trainer = settled(world)
    trainer.length = 60.0
    world.live(400)
    assert world.outcomes() == STORY
    assert trainer.switched == [BETTER.hash]
    status = world.status
    assert (status.replanning.stable, status.replanning.change) == (BETTER.hash, None)
    assert status.replanning.price_seconds == pytest.approx(0.2)
    assert world.attempt == 1
    told = [reason for reason in world.event_reasons() if reason.startswith("Replan")]
    assert told == ["ReplanApplying", "ReplanSwitched", "ReplanConfirmed"]
    for record in status.replans:
        assert record.reason
        assert record.message
    numbers = next(r.numbers for r in status.replans if r.outcome == "Applying")
    assert numbers["gainRatio"] == pytest.approx(1 - 10 / 14)
    names = set(world.config()["data"])
    assert names == {"plan.json", f"plan-{BETTER.hash}.json", f"plan-{DEFAULT.hash}.json"}
    trainer.length = 20.0
    world.live(600)
    assert trainer.switched == [BETTER.hash]  # both plans are as fast for short lists: nothing to gain
    assert world.cluster.violations == []


def test_a_steady_job_costs_no_requests(world: ReplanWorld) -> None:
    settled(world)
    world.live(100)
    before = world.cluster.version
    world.live(900)
    assert world.cluster.version - before <= 1  # of which a note that nothing has changed is one


def test_a_kill_at_any_request_of_a_change_leads_to_the_same_end() -> None:
    def run(kill_at: int | None, *, has_effect: bool) -> tuple[ReplanWorld, KillingApi, Trainer]:
        cluster = FakeCluster()
        api = KillingApi(cluster)
        world = ReplanWorld(api, cluster)
        trainer = settled(world)
        trainer.length = 60.0
        api.num_calls, api.kill_at, api.has_effect = 0, kill_at, has_effect
        for _ in range(24):
            try:
                world.live(20, step_s=20)
            except Killed:
                api.kill_at = None
                world.restart_operator()
        return world, api, trainer

    calm, api, _ = run(None, has_effect=False)
    assert calm.outcomes() == STORY
    num_calls = api.num_calls
    assert num_calls >= 6
    for kill_at in range(num_calls):
        for has_effect in (False, True):
            world, _, trainer = run(kill_at, has_effect=has_effect)
            place = f"killed {'after' if has_effect else 'before'} request {kill_at}"
            assert world.outcomes()[-3:] == STORY, (place, world.outcomes())
            assert trainer.switched == [BETTER.hash], place
            assert (world.status.replanning.stable, world.status.replanning.change) == (BETTER.hash, None), place
            assert len(world.status.replanning.switches) == 1, place
            assert world.plan_text() == BETTER.to_json(), place
            assert world.attempt == 1, place


def test_a_plan_that_makes_things_worse_is_returned_from(world: ReplanWorld) -> None:
    trainer = settled(world)
    trainer.step_of = lambda plan, length: 0.020 if plan == BETTER.hash else 0.014 if length > 30 else 0.010
    trainer.length = 60.0
    world.live(500)
    assert [outcome for outcome, _ in world.outcomes()] == ["Applying", "Switched", "Reverting", "Reverted"]
    assert trainer.switched == [BETTER.hash, DEFAULT.hash]
    assert world.status.replanning.stable == DEFAULT.hash
    world.live(1800, step_s=30)
    assert trainer.switched == [BETTER.hash, DEFAULT.hash], "it is not tried again"


def test_a_rank_that_refuses_keeps_the_plan_that_runs(world: ReplanWorld) -> None:
    trainer = settled(world)
    trainer.refuses.add(BETTER.hash)
    trainer.length = 60.0
    world.live(300)
    assert world.outcomes() == [("Applying", "WorkloadDrift"), ("Reverting", "Refused"), ("Reverted", "Refused")]
    assert BETTER.hash not in trainer.switched
    assert world.plan_text() == DEFAULT.to_json()


def test_a_rank_killed_in_the_middle_of_a_switch_restarts_into_the_config_maps_plan(world: ReplanWorld) -> None:
    trainer = settled(world)
    trainer.length = 60.0
    while world.plan_text() != BETTER.to_json():
        world.live(10)
    assert trainer.switched == []
    world.cluster.fail_pod(world.pods[0], 137)
    world.live(600)
    assert world.attempt == 2
    assert trainer.plan == BETTER.hash
    assert world.outcomes()[-1] == ("Confirmed", "Effective")
    assert world.cluster.violations == []


def test_a_job_that_fails_twice_under_a_new_plan_gets_the_old_one_back(world: ReplanWorld) -> None:
    trainer = settled(world)
    trainer.length = 60.0
    while trainer.plan != BETTER.hash:
        world.live(10)
    for attempt in (1, 2):
        assert world.attempt == attempt
        world.cluster.fail_pod(world.pods[0], 1)
        world.live(60)
    world.live(300)
    assert ("Reverting", "JobFails") in world.outcomes()
    assert trainer.plan == DEFAULT.hash
    assert world.status.phase == "Running"


@pytest.mark.parametrize("what", ["in force", "everything", "deleted"])
def test_a_config_map_changed_by_hand_harms_nobody(world: ReplanWorld, what: str) -> None:
    trainer = settled(world)
    trainer.length = 60.0
    world.live(400)
    config = world.config()
    name, edited = config["metadata"]["name"], BETTER.to_json().replace("mlp_bwd", "emb_fwd")
    if what == "deleted":
        world.cluster.delete(CONFIG_MAPS, NAMESPACE, name, {})
    else:
        keys = ["plan.json"] if what == "in force" else list(config["data"])
        world.cluster.patch(CONFIG_MAPS, NAMESPACE, name, {"data": dict.fromkeys(keys, edited)})
    world.live(600)
    assert trainer.plan == BETTER.hash
    assert world.attempt == 1
    if what == "in force":
        assert "PlanMended" in world.event_reasons()
    else:
        assert "PlanLost" in world.event_reasons()
    assert world.plan_text() == BETTER.to_json()
    assert (world.status.replanning.stable, world.status.replanning.change) == (BETTER.hash, None)
    assert len(world.searches.asked) <= 4


FAULTS: dict[str, Callable[[Trainer, bool], None]] = {
    "hanging": lambda trainer, on: setattr(trainer, "is_silent", on),
    "NaN": lambda trainer, on: setattr(trainer, "broken", _nan if on else None),
    "another plan": lambda trainer, on: setattr(trainer, "broken", _other if on else None),
    "lying counters": lambda trainer, on: setattr(trainer, "broken", _fewer if on else None),
}


def _nan(page: RankPage) -> RankPage:
    return replace(page, step_seconds=math.nan)


def _other(page: RankPage) -> RankPage:
    return replace(page, plan="f" * 16)


def _fewer(page: RankPage) -> RankPage:
    return replace(page, steps=1.0)


CASES = [(fault, False) for fault in FAULTS] + [(fault, True) for fault in FAULTS if fault != "hanging"]


@pytest.mark.parametrize(
    ("fault", "is_flapping"), CASES, ids=[f"{fault}, {'flapping' if on else 'lasting'}" for fault, on in CASES]
)
def test_metrics_that_hang_lie_or_flap_change_nothing_and_are_said(
    world: ReplanWorld, fault: str, is_flapping: bool
) -> None:
    trainer = settled(world)
    trainer.length = 60.0
    seen = set()
    for number in range(40):
        FAULTS[fault](trainer, not is_flapping or number % 2 == 0)
        world.live(10)
        seen.add(world.condition("Replanning"))
    assert trainer.switched == []
    assert world.outcomes() == []
    assert any(status == "Unknown" for status, _ in seen)
    FAULTS[fault](trainer, False)
    world.live(400)
    assert trainer.switched == [BETTER.hash]


def test_an_approval_by_annotation_is_awaited_and_acted_upon(world: ReplanWorld) -> None:
    trainer = settled(world, mode="Propose")
    trainer.length = 60.0
    world.live(200)
    assert world.condition("Replanning") == ("True", "Proposed")
    assert trainer.switched == []
    world.annotate("rap.dev/replan", f"approve:{BETTER.hash}")
    world.live(300)
    assert trainer.switched == [BETTER.hash]
    assert world.outcomes() == [("Proposed", "WorkloadDrift"), ("Applying", "Approved"), *STORY[1:]]


def test_many_jobs_switch_a_few_at_a_time() -> None:
    crowd = ReplanWorld(max_switching=3)
    trainers = [crowd.add(f"job-{number}") for number in range(7)]
    crowd.live(200)
    for trainer in trainers:
        trainer.length = 60.0
    crowd.live(600)
    assert crowd.most_switching == 3
    assert all(trainer.switched == [BETTER.hash] for trainer in trainers)


def test_a_search_that_fails_is_said_and_tried_again_later(world: ReplanWorld) -> None:
    trainer = settled(world)
    world.searches.error = "no profile of this model"
    trainer.length = 60.0
    world.live(200)
    assert world.condition("Replanning")[1] in ("SearchFailed", "MinInterval")
    assert any(r.reason == "SearchFailed" and "no profile" in r.message for r in world.status.replans)
    assert len(world.searches.asked) <= 4
    world.searches.error = ""
    world.live(FAILED_AGAIN_S + 200)
    assert trainer.switched == [BETTER.hash]


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_clock_that_jumps_during_a_change_neither_loses_nor_repeats_it(world: ReplanWorld, jump_s: float) -> None:
    trainer = settled(world)
    trainer.length = 60.0
    while trainer.plan != BETTER.hash:
        world.live(10)
    world.cluster.now_s += jump_s
    world.live(600)
    assert trainer.switched == [BETTER.hash]
    assert world.outcomes()[-1] == ("Confirmed", "Effective")
