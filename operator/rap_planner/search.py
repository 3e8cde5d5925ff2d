"""The search: mapping and schedule together, by five roles that the constructor takes. Pure and deterministic.

Every accepted step is shorter than the one before, and the first is the inline plan; so no result is worse than
inline, and stopping early gives the best plan so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rap_contract.profile import Profile

from rap_planner.cost import Costs
from rap_planner.enumerate import Choices, Enumerator
from rap_planner.loads import Estimator, Owned, Schedule
from rap_planner.place import EPSILON, InlinePlacer, Placer, WindowPlacer
from rap_planner.propose import first_mappings, moves
from rap_planner.rate import Candidate, StepRater, bound_seconds
from rap_planner.task import Task

Deadline = Callable[[], bool]
"""True when it is time to stop; the caller's clock, never ours."""
SMALL = 24  # movable features up to which every neighbour gets a schedule of its own
SPLIT_GAIN = 0.001  # of the step: what another launch must be worth, about what two measurements of a step differ by
PASSES = 4  # over the neighbours of a mapping at most; the search ends earlier when one finds nothing


def never() -> bool:
    """No deadline."""
    return False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a search found, and what it was compared with."""

    estimator: Estimator
    best: Candidate
    inline: Candidate
    """Everything inline, on its own rows."""
    own_rows: Candidate
    """The best schedule without moving a feature; the inline plan if the search was stopped before."""
    in_order: Candidate
    """The mapping found first and for itself, then its schedule: the order of the RAP paper."""
    bound_seconds: float
    complete: bool
    """Whether the search ended by itself."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Finds a mapping and a schedule. Replace a role to change the search."""

    enumerator: Enumerator = field(default_factory=Enumerator)
    placer: Placer = field(default_factory=WindowPlacer)
    rater: StepRater = field(default_factory=StepRater)

    def search(self, task: Task, profile: Profile, *, deadline: Deadline = never) -> Result:
        """Raises InvalidDocument for a task that is inconsistent or fits no memory."""
        task.check()
        costs = Costs(profile)
        estimator = Estimator(costs, task)
        choices = self.enumerator.choices(task, costs)
        inline = _candidate(estimator, frozenset(), InlinePlacer().place(estimator, choices, frozenset()))
        own = in_order = best = inline
        if not deadline():
            own = self.rater.better(inline, self._placed(estimator, choices, frozenset()))
            best = in_order = own
        complete = not deadline()
        if complete and choices.movable:
            climb = _Climb(self, estimator, choices, deadline)
            in_order = climb.in_order()
            # a mapping that was broken off may be better than where its climb ends: counted, more time could make a plan worse
            best = climb.joint(own if deadline() else self.rater.better(own, in_order))
            complete = not deadline()
        bound_s = bound_seconds(estimator, choices)
        estimator, best = self._split(estimator, choices, best, deadline)
        return Result(
            estimator=estimator,
            best=best,
            inline=inline,
            own_rows=own,
            in_order=in_order,
            bound_seconds=min(bound_s, best.seconds),
            complete=complete and not deadline(),
        )

    def _split(
        self, estimator: Estimator, choices: Choices, best: Candidate, deadline: Deadline
    ) -> tuple[Estimator, Candidate]:
        """Kernels cut in two, one after the other, while the step shortens by more than a measurement could tell."""
        load = estimator.estimate(best.owned, best.schedule).load
        for task in self.enumerator.split_tasks(estimator, load):
            if deadline():
                break
            other = Estimator(estimator.costs, task)
            found = self._placed(other, choices, best.owned)
            if found.seconds < best.seconds * (1 - SPLIT_GAIN):
                return self._split(other, choices, found, deadline)
        return estimator, best

    def _placed(self, estimator: Estimator, choices: Choices, owned: Owned) -> Candidate:
        return _candidate(estimator, owned, self.placer.place(estimator, choices, owned))


class _Climb:
    """Local search over mappings, with or without a look at the schedule."""

    def __init__(self, planner: Planner, estimator: Estimator, choices: Choices, deadline: Deadline) -> None:
        self._planner = planner
        self._estimator = estimator
        self._choices = choices
        self._deadline = deadline

    def in_order(self) -> Candidate:
        """Map first: the mapping is the best one inline; then the schedule of that mapping."""
        schedule = InlinePlacer().place(self._estimator, self._choices, frozenset())
        best = _candidate(self._estimator, frozenset(), schedule)
        for owned in first_mappings(self._estimator, self._choices):
            if self._fits(owned):
                best = self._planner.rater.better(best, _candidate(self._estimator, owned, schedule))
        mapped = self._climbed(best, schedule)
        return self._planner._placed(self._estimator, self._choices, mapped.owned)

    def joint(self, best: Candidate) -> Candidate:
        """From the best start: neighbours by their step under a schedule, the schedule made anew after each pass."""
        for owned in first_mappings(self._estimator, self._choices):
            if self._deadline():
                return best
            if self._fits(owned):
                best = self._better(best, owned)
        small = len(self._choices.movable) <= SMALL
        for _ in range(PASSES):
            before = best
            best = self._climbed(best, None if small else best.schedule)
            if not small:
                best = self._better(best, best.owned)
            if best.seconds > before.seconds - EPSILON or self._deadline():
                break
        return best

    def _climbed(self, best: Candidate, schedule: Schedule | None) -> Candidate:
        """One pass over the neighbours, each improvement taken at once; without a schedule each gets its own."""
        for owned in moves(self._estimator, self._choices, best.owned):
            if self._deadline():
                break
            if owned == best.owned or not self._fits(owned):
                continue
            if schedule is None:
                best = self._better(best, owned)
            else:
                best = self._planner.rater.better(best, _candidate(self._estimator, owned, schedule))
        return best

    def _better(self, best: Candidate, owned: Owned) -> Candidate:
        return self._planner.rater.better(best, self._planner._placed(self._estimator, self._choices, owned))

    def _fits(self, owned: Owned) -> bool:
        return not owned or max(self._estimator.task.memory(owned)) <= self._estimator.task.memory_bytes


def _candidate(estimator: Estimator, owned: Owned, schedule: Schedule) -> Candidate:
    return Candidate(owned=owned, schedule=schedule, seconds=estimator.step_seconds(owned, schedule))
