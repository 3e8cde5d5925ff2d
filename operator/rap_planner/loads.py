"""Estimate, by rank: the work each kernel has on each rank under a mapping, and the step that a schedule makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rap_contract.profile import Kind
from rap_contract.windows import INLINE

from rap_planner.cost import Costs, Grid, Slot, Terms
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
    num_bytes: tuple[float, ...]
    """Of each kernel."""
    num_ops: tuple[float, ...]
    body_seconds: tuple[float, ...]
    """Of each kernel alone on a full grid, without its launch."""


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
        count = len(task.kernels)
        self._bytes, self._ops, self._largest = [0.0] * count, [0.0] * count, [0.0] * count
        for item in task.items:
            for piece in item.pieces:
                self._bytes[piece.kernel] += piece.num_bytes
                self._ops[piece.kernel] += piece.num_ops
                self._largest[piece.kernel] = max(self._largest[piece.kernel], piece.num_bytes)
        self.kinds: tuple[Kind, ...] = tuple(
            costs.kind(num_bytes, num_ops) for num_bytes, num_ops in zip(self._bytes, self._ops, strict=True)
        )
        self._own_out = sum(item.out_bytes for item in task.items if item.owner is not None)
        self._out_of_rank = [0.0] * task.num_ranks
        for item in task.items:
            if item.owner is not None:
                self._out_of_rank[item.owner] += item.out_bytes
        self.own_exchange_bytes = self.exchange_bytes(frozenset())

    def loads(self, owned: Owned) -> tuple[Load, ...]:
        """One load for each kind of rank; of ranks alike the one with the least idle time, for it is the slowest."""
        task, count = self.task, len(self.task.kernels)
        extra: dict[int, tuple[list[float], list[float]]] = {}
        num_bytes, num_ops = list(self._bytes), list(self._ops)
        for index in sorted(owned):
            item = task.items[index]
            assert item.owner is not None
            here = extra.setdefault(item.owner, ([0.0] * count, [0.0] * count))
            for piece in item.pieces:
                num_bytes[piece.kernel] -= piece.num_bytes
                num_ops[piece.kernel] -= piece.num_ops
                here[0][piece.kernel] += task.num_ranks * piece.num_bytes
                here[1][piece.kernel] += task.num_ranks * piece.num_ops
        found = []
        others = [rank for rank in range(task.num_ranks) if rank not in extra]
        if others:
            slowest = min(others, key=lambda rank: (task.idle_seconds[rank], rank))
            found.append(self._load(slowest, num_bytes, num_ops))
        for rank, (more_bytes, more_ops) in sorted(extra.items()):
            together = [a + b for a, b in zip(num_bytes, more_bytes, strict=True)]
            ops = [a + b for a, b in zip(num_ops, more_ops, strict=True)]
            found.append(self._load(rank, together, ops))
        return tuple(found)

    def _load(self, rank: int, num_bytes: Sequence[float], num_ops: Sequence[float]) -> Load:
        rates = self.costs.coefficients
        per_byte, per_op, imbalance = rates.seconds_per_byte, rates.seconds_per_op, rates.imbalance_seconds_per_byte
        sizes = [max(size, 0.0) for size in num_bytes]
        work = [max(ops, 0.0) for ops in num_ops]
        bodies = [
            size * per_byte + ops * per_op + min(largest, size) * imbalance
            for size, ops, largest in zip(sizes, work, self._largest, strict=True)
        ]
        return Load(
            rank=rank,
            idle_seconds=self.task.idle_seconds[rank],
            num_bytes=tuple(sizes),
            num_ops=tuple(work),
            body_seconds=tuple(bodies),
        )

    def terms(self, load: Load) -> tuple[Terms, ...]:
        """Each kernel of a load alone on a full grid, explained."""
        return tuple(
            self.costs.alone(size, ops, min(largest, size), None)
            for size, ops, largest in zip(load.num_bytes, load.num_ops, self._largest, strict=True)
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
        return self.costs.exchange_seconds(self.exchange_bytes(owned), self.own_exchange_bytes)

    def added(self, load: Load, schedule: Schedule) -> tuple[float, ...]:
        """Seconds that each kernel adds to the step of a rank."""
        launch, share = self.costs.coefficients.launch_seconds, self.costs.share
        times = [launch + body / share(grid) for body, (_, grid) in zip(load.body_seconds, schedule, strict=True)]
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

    def solo(self, body_seconds: float, grid: Grid) -> float:
        """A kernel alone on a grid."""
        return self.costs.coefficients.launch_seconds + body_seconds / self.costs.share(grid)

    def rank_seconds(self, load: Load, schedule: Schedule) -> float:
        """The step of a rank, less exchange and training: negative while it would wait for others anyway."""
        return sum(self.added(load, schedule)) - load.idle_seconds

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
            exchange_seconds=exchange,
        )
