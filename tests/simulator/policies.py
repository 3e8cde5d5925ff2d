"""Policies to compare: each looks at a plant's readings and may order another plan.

never, always and a bare threshold are what a first version would do; `Flink` has the rules and defaults of its
Kubernetes operator's autoscaler as far as they have a counterpart here; `Ours` is the operator's own decision.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from rap_contract.operations import Replanning
from rap_contract.status import Baseline, Replans
from rap_operator.replanning.decide import decide_replanning
from rap_operator.replanning.values import Ask, Forget, Proposal, PutInForce, Reading, Seen, Store
from rap_operator.replanning.window import kept_s
from simulator.job import TRAINING_S, World, best_plan, capacity_s, name_of, plan_of
from simulator.plant import INTERVAL_S, NUM_RANKS, Plant


class Policy(Protocol):
    """Decides after each reading."""

    def look(self, plant: Plant, reading: Reading | None) -> None: ...


class Never:
    """The plan of the first day for ever."""

    def look(self, plant: Plant, reading: Reading | None) -> None:
        return


class Always:
    """After every reading the plan that it asks for."""

    def look(self, plant: Plant, reading: Reading | None) -> None:
        world = _world(reading)
        if world is not None:
            plant.order(best_plan(world))


class Threshold:
    """Another plan as soon as one reading promises a gain of 5 %."""

    def look(self, plant: Plant, reading: Reading | None) -> None:
        world = _world(reading)
        if world is None:
            return
        plan = best_plan(world)
        if plant.predicted(plan, world) < 0.95 * plant.predicted(plant.plan, world):
            plant.order(plan)


class Flink:
    """Stabilisation 5 min, window 15 min, band of the busy share, catch-up guard of 5 min, scale-down after 1 h."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=int(900 / INTERVAL_S) + 1)
        self._quiet_until_s = 300.0
        self._below_since_s: float | None = None

    def look(self, plant: Plant, reading: Reading | None) -> None:
        world = _world(reading)
        if reading is None or world is None:
            return
        self._readings.append(reading)
        if plant.time_s < self._quiet_until_s or len(self._readings) < (self._readings.maxlen or 0):
            return
        if world.lag_s > 300:
            return
        worlds = [known for each in self._readings if (known := _world(each)) is not None]
        mean = World(
            length=sum(w.length for w in worlds) / len(worlds), neighbour=sum(w.neighbour for w in worlds) / len(worlds)
        )
        wanted, plan = best_plan(mean), plant.plan
        utilisation = 2 ** (wanted - plan) * 0.7  # the load over what the plan is for; the target is 0.7
        if utilisation > 1.0:
            self._order(plant, wanted)
        elif utilisation < 0.4:
            self._below_since_s = plant.time_s if self._below_since_s is None else self._below_since_s
            if plant.time_s - self._below_since_s >= 3600:
                self._order(plant, wanted)
        else:
            self._below_since_s = None

    def _order(self, plant: Plant, plan: float) -> None:
        plant.order(plan)
        self._readings.clear()
        self._below_since_s, self._quiet_until_s = None, plant.time_s + 300


class Ours:
    """The operator's decision, with its ConfigMap and its search in memory."""

    def __init__(self, policy: Replanning | None = None) -> None:
        self.policy = policy or Replanning()
        self.state = Replans()
        self.outcomes: list[tuple[float, str, str]] = []
        """Time, outcome and reason of every decision that changes something."""
        self.reasons: dict[str, int] = {}
        """How often each reason was given."""
        span_s = kept_s(
            stabilization_s=self.policy.stabilization_seconds,
            window_s=self.policy.window_seconds,
            confirm_s=self.policy.confirm_seconds,
        )
        self._readings: deque[Reading] = deque(maxlen=int(span_s / INTERVAL_S) + 2)
        self._stored: set[str] = set()
        self._in_force = ""
        self._proposal: Proposal | None = None

    def look(self, plant: Plant, reading: Reading | None) -> None:
        if reading is not None:
            self._readings.append(reading)
        for _ in range(4):  # passes that follow at once on one another
            verdict = decide_replanning(self.policy, self.state, self._seen(plant), plant.time_s)
            self.state = verdict.state
            reason = verdict.condition[1]
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            if verdict.record is not None and verdict.record.outcome != "None":
                self.outcomes.append((plant.time_s, verdict.record.outcome, verdict.record.reason))
            for act in verdict.acts:
                match act:
                    case Ask():
                        self._proposal = self._search(plant, act)
                    case Store():
                        self._stored = set(act.keep)
                    case PutInForce():
                        self._in_force = act.plan
                        plant.order(plan_of(act.plan))
                    case Forget():
                        self._proposal = None
            if not verdict.acts:
                return

    def _seen(self, plant: Plant) -> Seen:
        return Seen(
            attempt=1,
            is_running=True,
            running_s=plant.time_s,
            num_ranks=NUM_RANKS,
            now_s=plant.time_s,
            readings=tuple(self._readings),
            in_force=self._in_force,
            stored=frozenset(self._stored),
            proposal=self._proposal,
        )

    def _search(self, plant: Plant, ask: Ask) -> Proposal:
        world = _measured(ask.measured)
        plan = best_plan(world)
        before = name_of(plant.plan)
        return Proposal(
            request=ask.request,
            state="Done",
            plan=name_of(plan),
            before=before,
            fallback=before,
            before_seconds=plant.predicted(plant.plan, world),
            after_seconds=plant.predicted(plan, world),
        )


def _measured(measured: Baseline) -> World:
    load = measured.workload["cat"]
    left = measured.capacity["output_dist"] / capacity_s(World(length=1.0))
    return World(length=load.mean_list_length or 1.0, neighbour=min(max(1 - left, 0.0), 0.9))


def _world(reading: Reading | None) -> World | None:
    """The world as one reading shows it, by a reader that checks nothing."""
    if reading is None or not reading.pages or not reading.pages[0].lists:
        return None
    page = reading.pages[0]
    left = page.capacity["output_dist"] / (0.3 * TRAINING_S)
    return World(length=page.lists["cat"], neighbour=min(max(1 - left, 0.0), 0.9), lag_s=page.lag_s or 0.0)
