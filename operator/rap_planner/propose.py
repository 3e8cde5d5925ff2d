"""Propose: mappings worth estimating. Deterministic; the order of proposals is the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator

from rap_planner.enumerate import Choices
from rap_planner.loads import Estimator, Owned
from rap_planner.rate import by_chain

MAX_RANKS = 16  # ranks whose features are tried apart in one pass: those with most idle time, and the busiest
MAX_SINGLE = 48  # movable features up to which each is tried by itself, and in pairs of ranks


def first_mappings(estimator: Estimator, choices: Choices) -> Iterator[Owned]:
    """Where a search starts: all on their own rows; all whose raw form is smaller at their owners; all at owners."""
    yield frozenset()
    items = estimator.task.items
    smaller = frozenset(n for n in choices.movable if items[n].raw_bytes < items[n].out_bytes)
    if smaller:
        yield smaller
    if choices.movable and len(smaller) < len(choices.movable):
        yield frozenset(choices.movable)


def moves(estimator: Estimator, choices: Choices, owned: Owned) -> Iterator[Owned]:
    """Neighbours of a mapping: chains moved together, parts of one rank's features, single features and swaps."""
    for group in by_chain(estimator, choices.movable).values():
        yield owned | frozenset(group)
        yield owned - frozenset(group)
    by_rank = _by_rank(estimator, choices)
    for rank in _interesting(estimator, by_rank):
        mine = by_rank[rank]
        away = [n for n in mine if n not in owned]
        here = [n for n in reversed(mine) if n in owned]
        size = 1
        while size <= max(len(away), len(here)):
            if size <= len(away):
                yield owned | frozenset(away[:size])
            if size <= len(here):
                yield owned - frozenset(here[:size])
            size *= 2
    if len(choices.movable) <= MAX_SINGLE:
        yield from _singles(choices, owned)


def _singles(choices: Choices, owned: Owned) -> Iterator[Owned]:
    for index in choices.movable:
        yield owned ^ {index}
    if len(choices.movable) <= MAX_SINGLE // 4:
        for place, one in enumerate(choices.movable):
            for other in choices.movable[place + 1 :]:
                yield owned ^ {one, other}


def _by_rank(estimator: Estimator, choices: Choices) -> dict[int, list[int]]:
    """Movable items of each owner, those first whose moving saves most bytes on the link."""
    items = estimator.task.items
    found: dict[int, list[int]] = {}
    for index in choices.movable:
        owner = items[index].owner
        assert owner is not None
        found.setdefault(owner, []).append(index)
    for mine in found.values():
        mine.sort(key=lambda n: (items[n].raw_bytes - items[n].out_bytes, n))
    return found


def _interesting(estimator: Estimator, by_rank: dict[int, list[int]]) -> list[int]:
    idle = estimator.task.idle_seconds
    ranks = sorted(by_rank, key=lambda rank: (-idle[rank], rank))
    return ranks if len(ranks) <= MAX_RANKS else [*ranks[: MAX_RANKS - 4], *ranks[-4:]]
