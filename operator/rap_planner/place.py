"""Place: the schedule of a mapping. Exact over cuts of the kernels into windows with one grid each, then refined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rap_contract.windows import INLINE, ORDER

from rap_planner.cost import Slot
from rap_planner.enumerate import Choices
from rap_planner.loads import Estimator, Load, Owned, Schedule

TRIES = 3  # slowest ranks a schedule is made for: another rank may become the slowest under it
PASSES = 2  # of the refinement at most
SPANS = (1, 2, 3)  # kernels moved together
FEW = 24  # kernels of a job up to which more than one is moved at a time
EPSILON = 1e-12  # s: below any clock; gains smaller than this are rounding


class Placer(Protocol):
    """Makes a schedule for a mapping."""

    def place(self, estimator: Estimator, choices: Choices, owned: Owned) -> Schedule:
        """A valid schedule: windows in the order of the kernels."""


@dataclass(frozen=True)
class InlinePlacer:
    """Everything inline: the reference."""

    def place(self, estimator: Estimator, choices: Choices, owned: Owned) -> Schedule:
        del choices, owned
        return ((INLINE, None),) * len(estimator.task.kernels)


@dataclass(frozen=True)
class WindowPlacer:
    """Dynamic programming over windows for the slowest rank, then single kernels moved while that helps all ranks."""

    def place(self, estimator: Estimator, choices: Choices, owned: Owned) -> Schedule:
        loads = estimator.loads(owned)
        best: Schedule = ((INLINE, None),) * len(estimator.task.kernels)
        seconds, load = estimator.slowest(loads, best)
        tried: set[int] = set()
        while load.rank not in tried and len(tried) < TRIES:
            tried.add(load.rank)
            candidate = refined(estimator, choices, load, cut(estimator, choices, load))
            over, load = estimator.slowest(loads, candidate)
            if over < seconds - EPSILON:
                best, seconds = candidate, over
        return best


def cut(estimator: Estimator, choices: Choices, load: Load) -> Schedule:
    """The best cut of the kernels into one run per window, all kernels of a run with one grid, for one rank."""
    count = len(load.works)
    costs: list[float] = [0.0] + [float("inf")] * count
    slots: list[Schedule] = [()] * (count + 1)
    for window in choices.windows:
        before, reached = list(costs), list(slots)
        for grid in choices.grids[window]:
            for first in range(count):
                if before[first] == float("inf"):
                    continue
                spans = _spans(estimator, load, first, (window, grid))
                for end, seconds in enumerate(spans, first + 1):
                    leaving = estimator.costs.ids_leave_seconds[window] if end == count else 0.0
                    if before[first] + seconds + leaving < costs[end] - EPSILON:
                        costs[end] = before[first] + seconds + leaving
                        slots[end] = (*reached[first], *(((window, grid),) * (end - first)))
    return slots[count]


def _spans(estimator: Estimator, load: Load, first: int, slot: Slot) -> list[float]:
    """Seconds added by kernels [first, end) in one slot, for each end."""
    window, grid = slot
    memory, compute = (estimator.costs.curve(window, grid, kind) for kind in ("memory", "compute"))
    bound = {"memory": 0.0, "compute": 0.0}
    found = []
    for kernel in range(first, len(load.works)):
        bound[estimator.kinds[kernel]] += estimator.solo(load, kernel, grid)
        total = bound["memory"] + bound["compute"]
        if window == INLINE or not total:
            found.append(total)
        else:
            found.append((bound["memory"] * memory(total) + bound["compute"] * compute(total)) / total)
    return found


def refined(estimator: Estimator, choices: Choices, load: Load, schedule: Schedule) -> Schedule:
    """A schedule with neighbouring kernels moved together to other windows or grids while the rank's step shortens."""
    best, seconds = schedule, estimator.rank_seconds(load, schedule)
    spans = SPANS if len(schedule) <= FEW else SPANS[:1]
    for _ in range(PASSES):
        before = seconds
        for span, first in [(size, place) for size in spans for place in range(len(schedule) - size + 1)]:
            low = ORDER[best[first - 1][0]] if first else 0
            high = ORDER[best[first + span][0]] if first + span < len(best) else len(ORDER)
            for window in choices.windows:
                if not low <= ORDER[window] <= high:
                    continue
                for grid in choices.grids[window]:
                    candidate = (*best[:first], *(((window, grid),) * span), *best[first + span :])
                    over = estimator.rank_seconds(load, candidate)
                    if over < seconds - EPSILON:
                        best, seconds = candidate, over
        if seconds > before - EPSILON:
            break
    return best
