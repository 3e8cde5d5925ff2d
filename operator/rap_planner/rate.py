"""Rate: which of two candidates is better, and how fast any plan could be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rap_contract.windows import INLINE

from rap_planner.enumerate import Choices
from rap_planner.loads import Estimator, Owned, Schedule


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A mapping with a schedule, and its predicted step."""

    owned: Owned
    schedule: Schedule
    seconds: float


@dataclass(frozen=True)
class StepRater:
    """Shorter steps first; equal steps by fewer moved features, fewer kernels beside training, then by content."""

    def better(self, left: Candidate, right: Candidate) -> Candidate:
        """One of the two; `right` only where it is really better."""
        return right if self._key(right) < self._key(left) else left

    def _key(self, candidate: Candidate) -> tuple[float, int, int, tuple[int, ...]]:
        beside = sum(window != INLINE for window, _ in candidate.schedule)
        return (round(candidate.seconds, 12), len(candidate.owned), beside, tuple(sorted(candidate.owned)))


def bound_seconds(estimator: Estimator, choices: Choices) -> float:
    """No plan of these choices has a shorter step, by the same estimates.

    Work cannot vanish by moving: over all ranks the bytes and ops stay the same. So the mean rank's work, less
    all that the windows could hide at best, is exposed; nor can a step be shorter than training itself.
    """
    task, costs = estimator.task, estimator.costs
    body = estimator.least_seconds()
    hideable = estimator.hideable_seconds() if len(choices.windows) > 1 else 0.0
    exposed = max(0.0, body - hideable)
    if not choices.movable:
        return costs.training_seconds - min(task.idle_seconds) + exposed + estimator.exchange_seconds(frozenset())
    mean_idle = sum(task.idle_seconds) / task.num_ranks
    over = max(-min(task.idle_seconds), exposed - mean_idle)
    least = sum(min(i.raw_bytes, i.out_bytes) for i in task.items if i.owner is not None)
    mean_sent = least * (task.num_ranks - 1) / task.num_ranks
    return costs.training_seconds + over + costs.exchange_seconds(mean_sent, estimator.own_exchange_bytes)


def by_chain(estimator: Estimator, movable: tuple[int, ...]) -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Movable items by feature group and chain: they are alike, so they are tried together."""
    found: dict[tuple[str, str], list[int]] = {}
    for index in movable:
        item = estimator.task.items[index]
        found.setdefault((item.group, item.chain), []).append(index)
    return {key: tuple(items) for key, items in found.items()}
