"""What was found of a step, and how it becomes a profile's windows. Values; the same for both runtimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from rap_contract.profile import KernelSample, Response, WindowProfile
from rap_contract.windows import HOST_GAPS, INPUT_DIST, OPTIMIZER, PLACES
from rap_planner.cost import Slot

from rap_trainer.world import World

NOTHING: Slot = ("", None)
"""The step without preprocessing, among steps with it in each window."""
LAST = "last in "
"""Before a window: the step with the last kernel there and all others in the first of PLACES."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Of a step without preprocessing."""

    step_seconds: float
    opens_seconds: dict[str, float]
    """When each window opens, after the step's beginning; of the slowest rank's median step."""
    responses: dict[str, tuple[Response, ...]] = field(default_factory=dict)
    own: dict[Slot, float] | None = None
    """Seconds of the step with the job's own preprocessing in each window, where that was tried in place of probes."""
    optimizer_seconds: float = 0.0
    """Of the dense optimizer's update alone."""

    def windows(self, input_dist: float) -> tuple[WindowProfile, ...]:
        """Windows with their lengths: until the next one opens, the last until the step ends."""
        opens = [self.opens_seconds[name] for name in PLACES] + [self.step_seconds]
        lengths = [max(0.0, after - before) for before, after in pairwise(opens)]
        return (
            WindowProfile(name=INPUT_DIST, seconds=min(input_dist, 0.5 * self.step_seconds)),
            *(
                WindowProfile(name=name, seconds=length, responses=self.responses.get(name, ()))
                for name, length in zip(PLACES, lengths, strict=True)
            ),
        )


def placed_nowhere(*, optimizer: float, host_gaps: float | None = None) -> tuple[WindowProfile, ...]:
    """What else a step has, by its seconds: nothing is placed there. None: not measured."""
    return WindowProfile(name=OPTIMIZER, seconds=optimizer), WindowProfile(name=HOST_GAPS, seconds=host_gaps)


def slowest(seconds: float, world: World) -> float:
    """Of the slowest rank. Collective."""
    if world.size == 1:
        return seconds
    most = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=world.control_group)
    return float(most)


def of_first_rank(samples: list[KernelSample], world: World) -> tuple[KernelSample, ...]:
    """The first rank's samples on every rank: they must agree to the bit on what they plan from. Collective."""
    if world.size > 1:
        kept = [samples]
        dist.broadcast_object_list(kept, src=0, group=world.control_group)
        samples = kept[0]
    return tuple(samples)
