"""A simulated job: what its step takes under a plan, for data and a machine that change. A model, not RAP itself.

A plan is a number: the base-2 logarithm of the list length it is best for. The step is training, slowed by a
neighbour, and preprocessing's work; a plan made for other data or another machine adds up to 35 % of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TRAINING_S = 0.010
PER_ELEMENT_S = 1e-5
MISFIT = 0.09  # of the step for data of twice or half the length; grows with the square, to MOST
MOST = 0.35
NEIGHBOUR_SHIFT = 1.0  # a plan for half the machine is one for lists of twice the length
GRID = 4  # plans for each doubling of the list length


@dataclass(frozen=True, kw_only=True)
class World:
    """Data and machine at one moment."""

    length: float
    neighbour: float = 0.0
    """Share of the machine that somebody else takes."""
    lag_s: float = 0.0


def ideal(world: World) -> float:
    """The plan that fits best, on a continuous scale."""
    return math.log2(max(world.length, 1.0)) - NEIGHBOUR_SHIFT * math.log2(1 - world.neighbour)


def best_plan(world: World) -> float:
    """The nearest plan there is."""
    return round(ideal(world) * GRID) / GRID


def step_seconds(world: World, plan: float) -> float:
    """The true step."""
    misfit = min(MISFIT * (ideal(world) - plan) ** 2, MOST)
    return (TRAINING_S / (1 - world.neighbour) + PER_ELEMENT_S * world.length) * (1 + misfit)


def exposed_ratio(world: World, plan: float) -> float:
    """Share of the step that waits for preprocessing: the misfit and a little."""
    misfit = min(MISFIT * (ideal(world) - plan) ** 2, MOST)
    return (misfit + 0.02) / (1 + misfit)


def capacity_s(world: World) -> float:
    """What the windows of the step have left over."""
    return 0.3 * TRAINING_S * (1 - world.neighbour)


def name_of(plan: float) -> str:
    """A plan's hash."""
    return f"{round((plan + 100) * GRID):016x}"


def plan_of(name: str) -> float:
    """The plan of a hash."""
    return int(name, 16) / GRID - 100
