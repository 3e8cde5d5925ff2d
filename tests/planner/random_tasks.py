"""Random planning tasks and profiles, equal for equal seeds; small enough for an exhaustive search if asked."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product

from rap_contract.plan import FusedKernel
from rap_contract.profile import (
    KINDS,
    Coefficients,
    Device,
    Links,
    Narrow,
    Profile,
    Rates,
    Response,
    Stage,
    WindowProfile,
)
from rap_contract.windows import INPUT_DIST, ORDER, PLACES
from rap_planner.cost import Costs
from rap_planner.enumerate import Choices, Enumerator
from rap_planner.loads import Estimator, Owned, Schedule
from rap_planner.task import Item, Piece, Task

STAGES: tuple[Stage, ...] = ("scan", "values", "lanes", "compare")
MB = 1e6
US = 1e-6


def random_profile(seed: int, *, windows: int = len(PLACES), grids: int = 3) -> Profile:
    """Probes in the first few windows of the step."""
    draw = random.Random(seed)
    sizes = draw.sample([16, 32, 64, 100, 160], grids - 1)
    full = draw.uniform(100, 300)
    profiles = [WindowProfile(name=INPUT_DIST, seconds=draw.uniform(0, 100) * US)]
    for place, name in enumerate(PLACES):
        responses = []
        if place < windows:
            for programs in (None, *sizes):
                share = 1.0 if programs is None else min(1.0, programs / full)
                length = draw.uniform(20, 150)
                for megabytes in (20, 80, 300):
                    solo = 1 + megabytes * 0.25 / share
                    added = max(0.0, solo - length) + draw.uniform(0, 0.4) * min(solo, length) * share
                    responses += [
                        Response(
                            kind=kind,
                            programs=programs,
                            num_bytes=int(megabytes * MB),
                            solo_seconds=solo * US,
                            added_seconds=added * US,
                        )
                        for kind in KINDS
                    ]
        leave_s = draw.choice([0.0, 5 * US]) if place < windows else 0.0
        window = WindowProfile(name=name, seconds=100 * US, responses=tuple(responses), ids_leave_seconds=leave_s)
        profiles.append(window)
    return Profile(
        device=Device(name="random", memory_bytes=10**12, driver="1"),
        date="2026-11-29",
        source="drawn at random for a test",
        batch_size=4096,
        num_ranks=2,
        step_seconds=1e-3,
        windows=tuple(profiles),
        links=Links(bytes_per_second=draw.choice([1e10, 1e11, 5e11])),
        coefficients=Coefficients(stages={"lanes": random_rates(draw, full)}, error_ratio=0.1),
    )


def random_rates(draw: random.Random, full: float) -> Rates:
    """Of one kind of kernel, with and without terms for bounded grids."""
    per_op = draw.choice([0.0, 1e-12])
    narrow = Narrow(
        launch_seconds=2 * US,
        seconds_per_byte=2.5e-13 * full,
        seconds_per_op=1.2 * per_op * full,
        imbalance=draw.choice([0.0, 0.5]),
        tiles_at_once=draw.choice([1, 4]),
        whole_rounds=draw.choice([True, False]),
    )
    return Rates(
        launch_seconds=1 * US,
        seconds_per_byte=2.5e-13,
        seconds_per_op=per_op,
        imbalance=draw.choice([0.0, 0.3]),
        full_tiles=full,
        narrow=draw.choice([None, narrow]),
        error_ratio=0.1,
    )


def random_task(seed: int, *, items: int = 12, kernels: int = 4, ranks: int = 4) -> Task:
    """Features of several chains; some tables ask more of their ranks than others."""
    draw = random.Random(seed)
    launches = tuple(FusedKernel(launch=n, stage=draw.choice(STAGES), wave=n, features=()) for n in range(kernels))
    features = []
    for number in range(items):
        raw, out = draw.uniform(0.1, 60) * MB, draw.uniform(0.1, 60) * MB
        uses = sorted(draw.sample(range(kernels), draw.randint(1, min(2, kernels))))
        features.append(
            Item(
                name=f"f{number}",
                group=str(number % 5),
                chain=f"chain {number % 3}",
                pieces=tuple(
                    Piece(kernel=k, num_bytes=(raw + out) / len(uses), ops={"op": raw}, num_tiles=draw.randint(1, 300))
                    for k in uses
                ),
                raw_bytes=raw,
                out_bytes=out,
                owner=draw.randrange(ranks) if draw.random() < 0.8 else None,
            )
        )
    idle = [draw.choice([0.0, draw.uniform(0, 200) * US]) for _ in range(ranks)]
    works = [tuple(item.name for item in features if any(p.kernel == n for p in item.pieces)) for n in range(kernels)]
    return Task(
        job=f"random-{seed}",
        items=tuple(features),
        kernels=tuple(each.model_copy(update={"features": works[n]}) for n, each in enumerate(launches)),
        idle_seconds=tuple(value - min(idle) for value in idle),
    )


def exhaustive(task: Task, profile: Profile) -> float:
    """The shortest step over every mapping, cut into windows, and grid of every single kernel."""
    costs = Costs(profile)
    estimator = Estimator(costs, task)
    choices = Enumerator().choices(task, costs)
    mappings = [
        frozenset(chosen) for size in range(len(choices.movable) + 1) for chosen in combinations(choices.movable, size)
    ]
    schedules = list(all_schedules(choices, len(task.kernels)))
    return min(_best(estimator, owned, schedules) for owned in mappings)


def _best(estimator: Estimator, owned: Owned, schedules: list[Schedule]) -> float:
    loads, exchange = estimator.loads(owned), estimator.exchange_seconds(owned)
    fixed = estimator.costs.training_seconds + exchange
    return min(max(estimator.rank_seconds(load, schedule) for load in loads) + fixed for schedule in schedules)


def all_schedules(choices: Choices, kernels: int) -> list[Schedule]:
    """Every valid schedule; of the windows in which nothing was probed only the last, for they are alike."""
    probed = [w for w in choices.windows if w == "inline" or len(choices.grids[w]) > 1]
    slots = [(w, g) for w in (*probed, choices.windows[-1]) for g in choices.grids[w]]
    return [
        schedule
        for schedule in product(slots, repeat=kernels)
        if all(ORDER[a[0]] <= ORDER[b[0]] for a, b in pairwise(schedule))
    ]
