"""A job about to be replanned, as values: everything says yes, and a test changes one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rap_contract.operations import Replanning
from rap_contract.status import Baseline, Load, ReplanRecord, Replans, time_text
from rap_operator.replanning.decide import decide_replanning
from rap_operator.replanning.values import Proposal, RankPage, Reading, Seen, Verdict

NOW_S = 1_800_000_000.0
OLD, NEW = "a" * 16, "b" * 16
STEP_S, STEPS_PER_S = 0.010, 100.0
POLICY = Replanning(window_seconds=120, stabilization_seconds=300, hold_seconds=0)
BASELINE = Baseline(workload={"cat": Load(mean_list_length=20.0, null_ratio=0.1)}, prediction_ratio=1.0)
STATE = Replans(stable=OLD, baseline=BASELINE, num_ranks=2)
PROPOSAL = Proposal(
    request="r",
    state="Done",
    plan=NEW,
    shape="shape",
    before=OLD,
    fallback=OLD,
    before_seconds=STEP_S,
    after_seconds=0.8 * STEP_S,
)


def page(at_s: float, rank: int, **parts: Any) -> RankPage:
    """What a rank says that has trained since time 0, of data thrice as long as its plan was made for."""
    said: dict[str, Any] = {
        "attempt": 1,
        "plan": OLD,
        "steps": STEPS_PER_S * at_s,
        "step_seconds": at_s,
        "exposed_seconds": 0.02 * at_s,
        "stall_seconds": 0.0,
        "predicted_seconds": STEP_S,
        "lag_s": 1.0,
        "freshness_s": 2.0,
        "busy_ratio": 0.9,
        "lists": {"cat": 60.0},
        "nulls": {"cat": 0.1},
    }
    return RankPage(rank=rank, **{**said, **parts})


def readings(*, until_s: float = 2000.0, count: int = 40, every_s: float = 30.0, **parts: Any) -> tuple[Reading, ...]:
    """Readings of two ranks up to a moment."""
    times = [until_s - every_s * (count - 1 - number) for number in range(count)]
    return tuple(
        Reading(at_s=at_s, pages=(page(at_s, 0, **parts), page(at_s, 1, **parts)), num_asked=2) for at_s in times
    )


def seen(**parts: Any) -> Seen:
    """A running job with a full window and a plan found."""
    base = Seen(
        attempt=1,
        is_running=True,
        running_s=5000.0,
        num_ranks=2,
        now_s=2000.0,
        readings=readings(),
        proposal=PROPOSAL,
        stored=frozenset({OLD, NEW}),
        in_force=OLD,
    )
    return replace(base, **parts)


def verdict(
    policy: Replanning | None = None,
    state: Replans | None = None,
    *,
    wall_s: float = NOW_S,
    history: tuple[ReplanRecord, ...] = (),
    **parts: Any,
) -> Verdict:
    """The decision on that job with parts of what was seen replaced."""
    return decide_replanning(policy or POLICY, state or STATE, seen(**parts), wall_s, history=history)


def ago(seconds: float) -> str:
    """A moment before now."""
    return time_text(NOW_S - seconds)


def changed(state: str, *, since_s: float = 10.0, **parts: Any) -> Replans:
    """The status of a job whose plan is being changed."""
    change = {
        "state": state,
        "plan": NEW,
        "shape": "shape",
        "before": OLD,
        "trigger": "WorkloadDrift",
        "since": ago(since_s),
        "promised_ratio": 0.2,
        "step_seconds": STEP_S,
        "attempt": 1,
        "baseline": Baseline(workload={"cat": Load(mean_list_length=60.0, null_ratio=0.1)}, prediction_ratio=1.0),
        **parts,
    }
    return STATE.model_copy(update={"change": Replans.model_validate({"change": change}).change})
