"""Enumerate: the choices a plan has. Which features may move to their table's owner, which windows and grids exist."""

from __future__ import annotations

from dataclasses import dataclass

from rap_contract.profile import Profile
from rap_contract.windows import ORDER

from rap_planner.cost import Costs
from rap_planner.kernel_cost import Grid
from rap_planner.task import Task


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

    @classmethod
    def of(cls, profile: Profile) -> Enumerator:
        """What the runtime that was profiled can do: only the eager one preprocesses at tables' owners."""
        return cls(table_owner=profile.runtime == "eager")

    def choices(self, task: Task, costs: Costs) -> Choices:
        movable = self.table_owner and task.num_ranks > 1
        windows = tuple(ORDER) if self.co_run else tuple(ORDER)[:1]
        return Choices(
            movable=tuple(n for n, item in enumerate(task.items) if movable and item.owner is not None),
            windows=windows,
            grids={name: costs.grids[name] for name in windows},
        )
