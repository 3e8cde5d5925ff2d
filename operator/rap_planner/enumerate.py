"""Enumerate: the choices a plan has. Which features may move to their table's owner, which windows and grids exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rap_contract.profile import Profile
from rap_contract.windows import ORDER

from rap_planner.cost import Costs
from rap_planner.kernel_cost import Grid
from rap_planner.loads import Estimator, Load
from rap_planner.task import Task

SPLITTABLE = ("lanes", "values")
"""Stages whose kernels work on each feature by itself, for any range of them."""
MAX_SPLIT = 4  # kernels tried at a time: what is short already gains nothing by being shorter
MAX_KERNELS = 64  # beyond which there are pieces enough to place


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything a plan may choose from."""

    movable: tuple[int, ...]
    """Items that may be preprocessed by the owners of their tables."""
    windows: tuple[str, ...]
    """In the order of the step, inline first."""
    grids: dict[str, tuple[Grid, ...]]


@dataclass(frozen=True, kw_only=True)
class Enumerator:
    """What the runtime in use can do."""

    table_owner: bool = True
    """Whether features may be preprocessed by the owner of their table."""
    co_run: bool = True
    """Whether kernels may run beside training."""

    splits: bool = False
    """Whether a launch may be cut in two, its parts in windows of their own."""

    @classmethod
    def of(cls, profile: Profile) -> Enumerator:
        """What the runtime that was profiled can do: the eager one runs all kernels in one piece, but also at tables' owners."""
        is_eager = profile.runtime == "eager"
        return cls(table_owner=is_eager, splits=not is_eager)

    def split_tasks(self, estimator: Estimator, load: Load) -> Iterator[Task]:
        """The task with one of its longest kernels as two of about equal work, the longest first."""
        task = estimator.task
        may = [n for n, kernel in enumerate(task.kernels) if kernel.stage in SPLITTABLE and len(kernel.features) > 1]
        if not self.splits or len(task.kernels) >= MAX_KERNELS:
            return
        for kernel in sorted(may, key=lambda n: (-estimator.solo(load, n, None), n))[:MAX_SPLIT]:
            yield task.split(kernel, _half(task, kernel))

    def choices(self, task: Task, costs: Costs) -> Choices:
        movable = self.table_owner and task.num_ranks > 1
        windows = tuple(ORDER) if self.co_run else tuple(ORDER)[:1]
        return Choices(
            movable=tuple(n for n, item in enumerate(task.items) if movable and item.owner is not None),
            windows=windows,
            grids={name: costs.grids[name] for name in windows},
        )


def _half(task: Task, kernel: int) -> int:
    """How many of its first features have about half of a kernel's bytes; never none or all."""
    sizes = dict.fromkeys(task.kernels[kernel].features, 0.0)
    for item in task.items:
        if item.name in sizes:
            sizes[item.name] += sum(piece.num_bytes for piece in item.pieces if piece.kernel == kernel)
    total, done = sum(sizes.values()), 0.0
    for number, size in enumerate(sizes.values()):
        if number and done + size / 2 >= total / 2:
            return number
        done += size
    return len(sizes) - 1
