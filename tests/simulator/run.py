"""Runs policies over traces and says what each cost: `python -m simulator.run --days 30` prints JSON lines."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from simulator.plant import INTERVAL_S, Plant
from simulator.policies import Always, Flink, Never, Ours, Policy, Threshold
from simulator.traces import DAY_S, TRACES, Trace

OSCILLATION_S = 2 * 3600.0
"""A plan that is taken back within two hours of being left is an oscillation."""
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "never": Never,
    "always": Always,
    "threshold": Threshold,
    "flink": Flink,
    "ours": Ours,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a policy came to on a trace."""

    trace: str
    policy: str
    days: float
    regret_percent: float
    """Steps fewer than an oracle that replans at once and for nothing."""
    switches_a_day: float
    oscillations: int
    hours_a_minute: float
    """Simulated hours in a minute of CPU time."""


def simulate(
    trace: Trace, policy: Policy, *, days: float, seed: int = 0, curse: float = 1.0, look_every: int = 1
) -> tuple[Plant, float]:
    """The plant after some days of a policy, and the CPU seconds it took."""
    plant = Plant(trace=trace, random=random.Random(seed), curse=curse)
    began_s = time.process_time()
    for number in range(int(days * DAY_S / INTERVAL_S)):
        plant.advance()
        if number % look_every == 0:
            policy.look(plant, plant.reading())
    return plant, time.process_time() - began_s


def oscillations(plant: Plant) -> int:
    """Switches back to a plan that was left within OSCILLATION_S, for a world that wants the same as then."""
    count = 0
    plans = [before for _, before in plant.switches] + [plant.plan]
    for number, (at_s, _) in enumerate(plant.switches):
        taken = plans[number + 1]
        count += any(left == taken and at_s - left_s < OSCILLATION_S for left_s, left in plant.switches[:number][-8:])
    return count


def outcome(name: str, trace: Trace, policy: Policy, *, days: float, seed: int = 0) -> Outcome:
    """The numbers of one run."""
    plant, seconds = simulate(trace, policy, days=days, seed=seed)
    return Outcome(
        trace=trace.name,
        policy=name,
        days=days,
        regret_percent=100 * (1 - plant.steps / plant.oracle_steps),
        switches_a_day=len(plant.switches) / days,
        oscillations=oscillations(plant),
        hours_a_minute=days * 24 / seconds * 60,
    )


def main() -> None:
    """Prints every policy on every trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="append", choices=list(TRACES))
    parser.add_argument("--policy", action="append", choices=list(POLICIES))
    options = parser.parse_args()
    for trace in options.trace or TRACES:
        for name in options.policy or POLICIES:
            found = outcome(name, TRACES[trace], POLICIES[name](), days=options.days, seed=options.seed)
            print(json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in asdict(found).items()}))


if __name__ == "__main__":
    main()
