"""The simulated plant: a job that makes steps under the plan it was given, and metrics of it with noise and faults.

Time is a number; a switch takes effect after a while and costs training time, as a ConfigMap reaches pods.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from rap_operator.replanning.values import RankPage, Reading
from simulator.job import World, best_plan, capacity_s, exposed_ratio, name_of, plan_of, step_seconds
from simulator.traces import Fault, Trace

INTERVAL_S = 30.0  # of readings
STALL_S = 0.5  # of training, for a switch on all ranks
DELAY_S = (5.0, 70.0)  # until all kubelets have brought a ConfigMap to their pods
STEP_NOISE = 0.02
GAUGE_NOISE = 0.03
NUM_RANKS = 2


@dataclass
class Plant:
    """The job and its plan."""

    trace: Trace
    random: random.Random
    time_s: float = 0.0
    plan: float = 0.0
    steps: float = 0.0
    step_time_s: float = 0.0
    exposed_s: float = 0.0
    stalled_s: float = 0.0
    oracle_steps: float = 0.0
    switches: list[tuple[float, float]] = field(default_factory=list)
    """When, and from which plan."""
    curse: float = 1.0
    """Every plan but the first makes the step so many times as long: a planner that is wrong."""
    _next: float | None = None
    _next_at_s: float = 0.0
    _first: float = 0.0

    def __post_init__(self) -> None:
        self.plan = self._first = best_plan(self.trace.world_at(0.0))

    @property
    def world(self) -> World:
        return self.trace.world_at(self.time_s)

    def order(self, plan: float) -> None:
        """All ranks are to run a plan; the newest order counts."""
        if plan in (self.plan, self._next):
            if plan == self.plan:
                self._next = None
            return
        self._next, self._next_at_s = plan, self.time_s + self.random.uniform(*DELAY_S)

    def advance(self, seconds: float = INTERVAL_S) -> None:
        """Time goes by."""
        world, trained_s = self.world, seconds
        if self._next is not None and self.time_s >= self._next_at_s:
            self.switches.append((self.time_s, self.plan))
            self.plan, self._next = self._next, None
            self.stalled_s += STALL_S
            trained_s -= STALL_S
        curse = self.curse if self.plan != self._first else 1.0
        step_s = step_seconds(world, self.plan) * curse * math.exp(self.random.gauss(0, STEP_NOISE))
        self.steps += trained_s / step_s
        self.step_time_s += trained_s
        self.exposed_s += trained_s * min(max(exposed_ratio(world, self.plan) + self.random.gauss(0, 0.01), 0.0), 1.0)
        self.oracle_steps += seconds / step_seconds(world, best_plan(world))
        self.time_s += seconds

    def reading(self) -> Reading | None:
        """What the operator reads now."""
        fault: Fault = self.trace.fault_at(self.time_s)
        if fault == "hanging":
            return None
        if fault == "missing":
            return Reading(at_s=self.time_s, num_asked=NUM_RANKS, error="rank 0: connection refused")
        pages = tuple(self._page(rank, fault) for rank in range(NUM_RANKS))
        if fault == "partial":
            return Reading(at_s=self.time_s, pages=pages[:1], num_asked=NUM_RANKS, error="rank 1: timed out")
        return Reading(at_s=self.time_s, pages=pages, num_asked=NUM_RANKS)

    def _page(self, rank: int, fault: Fault) -> RankPage:
        world = self.world
        noise = self.random.gauss

        def blurred(value: float) -> float:
            return value * math.exp(noise(0, GAUGE_NOISE))

        lies = fault == "lying"
        return RankPage(
            rank=rank,
            attempt=1,
            plan=name_of(9.0) if fault == "other plan" and rank else name_of(self.plan),
            steps=self.steps * (0.5 if lies else 1.0),
            step_seconds=math.nan if fault == "nan" else self.step_time_s,
            exposed_seconds=self.exposed_s,
            stall_seconds=self.stalled_s,
            predicted_seconds=step_seconds(world, self.plan) if rank == 0 else None,
            lag_s=world.lag_s,
            freshness_s=1.0 + world.lag_s,
            busy_ratio=0.9,
            lists={"cat": blurred(world.length) * (100.0 if lies else 1.0)} if rank == 0 else {},
            nulls={"cat": 0.1} if rank == 0 else {},
            capacity={"output_dist": blurred(capacity_s(world))} if rank == 0 else {},
        )

    def predicted(self, plan: float, measured: World) -> float:
        """What a planner says of a plan: right but for a tenth of its misfit."""
        exact = step_seconds(measured, plan)
        flat = step_seconds(measured, best_plan(measured))
        return flat + 1.1 * (exact - flat)


def plan_hash(name: str) -> float:
    """The plan of a hash."""
    return plan_of(name)
