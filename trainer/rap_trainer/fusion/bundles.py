"""Lanes that are worked on together, because they fill neighbouring columns of the dense matrix. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from rap_trainer.fusion.stages import Lane, chain_of

VERTICAL = frozenset(
    {
        "fill_float",
        "fill_int",
        "clamp_float",
        "clamp_int",
        "logit",
        "boxcox",
        "boxcox_log",
        "log",
        "log1p",
        "affine",
        "to_float",
    }
)
"""Element functions that take another parameter for each column of a tile."""
LEAST_BUNDLE = 4
"""Lanes: fewer leave more than half of a tile's columns empty."""


def bundled(lanes: Iterable[Lane], most: int) -> list[tuple[Lane, ...]]:
    """Lanes of one form that fill neighbouring columns of the dense matrix: their rows are written in pieces, not number by number."""
    fit = [
        lane
        for lane in lanes
        if lane.destination.written == "dense" and not lane.is_list and VERTICAL.issuperset(chain_of(lane.steps))
    ]
    fit.sort(key=lambda lane: (lane.form, lane.destination.index))
    runs: list[list[Lane]] = []
    for lane in fit:
        last = runs[-1][-1] if runs else None
        if last is not None and last.form == lane.form and last.destination.index + 1 == lane.destination.index:
            runs[-1].append(lane)
        else:
            runs.append([lane])
    found: list[tuple[Lane, ...]] = []
    for run in runs:
        if len(run) >= LEAST_BUNDLE:
            pieces = -(-len(run) // most)
            bounds = [len(run) * n // pieces for n in range(pieces + 1)]
            found += [tuple(run[begin:end]) for begin, end in pairwise(bounds)]
    return found
