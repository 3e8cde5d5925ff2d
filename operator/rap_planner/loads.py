"""Estimate, by rank: the work each kernel has on each rank under a mapping, and the step that a schedule makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rap_contract.profile import Kind, Rates
from rap_contract.windows import INLINE

from rap_planner.cost import Costs, Slot
from rap_planner.kernel_cost import Grid, Terms, Work, least_rate, terms, work_of
from rap_planner.task import Task

Owned = frozenset[int]
"""Indices of the items that the owners of their tables preprocess for everyone."""
Schedule = tuple[Slot, ...]
"""Window and grid of each kernel."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one rank (or several alike) has to do."""

    rank: int
    """The rank, or the first one of those alike."""
    idle_seconds: float
    works: tuple[Work, ...]
    """Of each kernel."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The step under a mapping and a schedule."""

    seconds: float
    load: Load
    """Of the slowest rank."""
    added: tuple[float, ...]
    """What each kernel adds there."""
    exchange_seconds: float


class Estimator:
    """Estimates mappings and schedules of one task. Keeps nothing between calls but sums of the task."""

    def __init__(self, costs: Costs, task: Task) -> None:
        self.costs = costs
        self.task = task
        self.rates: tuple[Rates, ...] = _rates(costs, task)
        self._pieces = tuple(
            tuple((p.kernel, work_of(self.rates[p.kernel], p.num_bytes, p.ops, p.num_tiles)) for p in item.pieces)
            for item in task.items
        )
        """By item: kernel and work of each piece."""
        everywhere = [Work()] * len(task.kernels)
        for pieces in self._pieces:
            for kernel, work in pieces:
                everywhere[kernel] = everywhere[kernel].plus(work, 1)
        self._everywhere = tuple(everywhere)
        self.kinds: tuple[Kind, ...] = tuple("compute" if w.ops > w.memory else "memory" for w in everywhere)
        self._own_out = sum(item.out_bytes for item in task.items if item.owner is not None)
        self._out_of_rank = [0.0] * task.num_ranks
        for item in task.items:
            if item.owner is not None:
                self._out_of_rank[item.owner] += item.out_bytes
        self.own_exchange_bytes = self.exchange_bytes(frozenset())

    def loads(self, owned: Owned) -> tuple[Load, ...]:
        """One load for each kind of rank; of ranks alike the one with the least idle time, for it is the slowest."""
        task, everywhere = self.task, list(self._everywhere)
        extra: dict[int, list[Work]] = {}
        for index in sorted(owned):
            owner = task.items[index].owner
            assert owner is not None
            here = extra.setdefault(owner, [Work()] * len(everywhere))
            for kernel, work in self._pieces[index]:
                everywhere[kernel] = everywhere[kernel].plus(work, -1)
                here[kernel] = here[kernel].plus(work, task.num_ranks)
        found = []
        others = [rank for rank in range(task.num_ranks) if rank not in extra]
        if others:
            slowest = min(others, key=lambda rank: (task.idle_seconds[rank], rank))
            found.append(self._load(slowest, everywhere))
        for rank, more in sorted(extra.items()):
            together = [one.plus(other, 1) for one, other in zip(everywhere, more, strict=True)]
            found.append(self._load(rank, together))
        return tuple(found)

    def _load(self, rank: int, works: Sequence[Work]) -> Load:
        return Load(rank=rank, idle_seconds=self.task.idle_seconds[rank], works=tuple(works))

    def terms(self, load: Load, grids: Sequence[Grid] | None = None) -> tuple[Terms, ...]:
        """Each kernel of a load alone, on these grids or its own, explained."""
        return tuple(
            terms(rates, work, grid)
            for rates, work, grid in zip(self.rates, load.works, grids or [None] * len(self.rates), strict=True)
        )

    def inline_seconds(self, grid: Grid = None) -> float:
        """All of one rank's own rows alone, on a grid."""
        load, *_ = self.loads(frozenset())
        return sum(each.seconds for each in self.terms(load, [grid] * len(self.task.kernels)))

    def least_seconds(self) -> float:
        """Work of one rank's own rows that no grid can avoid."""
        return sum(work.least for work in self._everywhere)

    def hideable_seconds(self) -> float:
        """Of that work, what the windows of a step can hide at most."""
        return self.costs.hideable_seconds(
            lambda grid: max((least_rate(rates, grid) for rates in self.rates), default=0.0)
        )

    def exchange_bytes(self, owned: Owned) -> float:
        """Bytes the busiest rank sends or receives for the inputs of one step."""
        ranks = self.task.num_ranks
        if ranks == 1:
            return 0.0
        total, of_rank = self._own_out, list(self._out_of_rank)
        for index in sorted(owned):
            item = self.task.items[index]
            assert item.owner is not None
            total += item.raw_bytes - item.out_bytes
            of_rank[item.owner] += item.raw_bytes - item.out_bytes
        return max(max(total - mine, (ranks - 1) * mine) for mine in of_rank)

    def exchange_seconds(self, owned: Owned) -> float:
        seconds = self.costs.exchange_seconds(self.exchange_bytes(owned), self.own_exchange_bytes)
        return seconds + (self.costs.raw_exchange_seconds if owned else 0.0)

    def added(self, load: Load, schedule: Schedule) -> tuple[float, ...]:
        """Seconds that each kernel adds to the step of a rank."""
        times = [self.solo(load, kernel, grid) for kernel, (_, grid) in enumerate(schedule)]
        branch: dict[str, float] = {}
        for seconds, (window, _) in zip(times, schedule, strict=True):
            branch[window] = branch.get(window, 0.0) + seconds
        ratios: dict[tuple[Slot, Kind], float] = {}
        found = []
        for seconds, slot, kind in zip(times, schedule, self.kinds, strict=True):
            if (slot, kind) not in ratios:
                together = branch[slot[0]]
                exposed = slot[0] == INLINE or not together
                ratios[slot, kind] = 1.0 if exposed else self.costs.curve(*slot, kind)(together) / together
            found.append(seconds * ratios[slot, kind])
        return tuple(found)

    def solo(self, load: Load, kernel: int, grid: Grid) -> float:
        """A kernel of a load alone on a grid."""
        return terms(self.rates[kernel], load.works[kernel], grid).seconds

    def rank_seconds(self, load: Load, schedule: Schedule) -> float:
        """The step of a rank, less exchange and training: negative while it would wait for others anyway."""
        return sum(self.added(load, schedule)) + self.leaving_seconds(schedule) - load.idle_seconds

    def leaving_seconds(self, schedule: Schedule) -> float:
        """What the step loses because ids leave when the last kernel has ended."""
        return self.costs.ids_leave_seconds[schedule[-1][0]] if schedule else 0.0

    def slowest(self, loads: Sequence[Load], schedule: Schedule) -> tuple[float, Load]:
        """(seconds over training, its load) of the rank that all wait for."""
        return max(((self.rank_seconds(load, schedule), load) for load in loads), key=lambda pair: pair[0])

    def step_seconds(self, owned: Owned, schedule: Schedule) -> float:
        """The predicted step."""
        over, _ = self.slowest(self.loads(owned), schedule)
        return self.costs.training_seconds + over + self.exchange_seconds(owned)

    def estimate(self, owned: Owned, schedule: Schedule) -> Estimate:
        """The predicted step with its slowest rank."""
        over, load = self.slowest(self.loads(owned), schedule)
        exchange = self.exchange_seconds(owned)
        return Estimate(
            seconds=self.costs.training_seconds + over + exchange,
            load=load,
            added=self.added(load, schedule),
            exchange_seconds=exchange + self.leaving_seconds(schedule),
        )


def _rates(costs: Costs, task: Task) -> tuple[Rates, ...]:
    """Of each kernel: those of the launch that it is a part of."""
    if not task.origins:
        return costs.coefficients.of([kernel.stage for kernel in task.kernels])
    stages = {origin: kernel.stage for origin, kernel in zip(task.origins, task.kernels, strict=True)}
    launches = costs.coefficients.of([stages[origin] for origin in sorted(stages)])
    return tuple(launches[origin] for origin in task.origins)
