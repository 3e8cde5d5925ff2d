"""How long the lists of a node are: equally likely lengths, which the ops of a chain cut, multiply and cross.

A mean is not enough: of lists with 20 elements on the mean, few have 20, so `firstx 20` leaves 11.5 of them (log-normal lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rap_contract.profile import GroupWorkload

SHARES = 16  # of lists, by length: what a limit leaves of log-normal lengths is off by 0.3 %, with 8 shares by 0.8 %

Lengths = tuple[float, ...]
"""Mean lengths of equal shares of the lists, the shortest first; one share: all are as long."""


def of_column(load: GroupWorkload) -> Lengths:
    """Of a raw column: the shape of its group with the mean of its group."""
    whole = sum(load.list_shape)
    if not whole:
        return (load.mean_list_length,)
    return tuple(load.mean_list_length * each * len(load.list_shape) / whole for each in load.list_shape)


def shares_of(lengths: Sequence[float]) -> Lengths:
    """Of lists with these lengths, in any order; no lists have no length."""
    ordered, number = sorted(lengths), min(SHARES, len(lengths))
    if not number:
        return (0.0,)
    bounds = [len(ordered) * place // number for place in range(number + 1)]
    return tuple(sum(ordered[begin:end]) / (end - begin) for begin, end in pairwise(bounds))


def mean(lengths: Lengths) -> float:
    """Elements a row."""
    return sum(lengths) / len(lengths)


def at_most(lengths: Lengths, limit: float) -> Lengths:
    """The first elements of every list."""
    return tuple(min(length, limit) for length in lengths)


def grams(lengths: Lengths, size: int) -> Lengths:
    """Windows of so many neighbours; a shorter list is one window."""
    return tuple(max(length - size + 1, min(length, 1.0)) for length in lengths)


def crossed(lengths: Lengths, others: Lengths, limit: float) -> Lengths:
    """Pairs of two columns' lists, whose lengths have nothing to do with each other; at most so many."""
    return shares_of([min(one * other, limit) for one in lengths for other in others])
