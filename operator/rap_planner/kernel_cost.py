"""What a kernel costs alone, as named terms at its fitted rates.

On its own grid: launch + bytes / bandwidth + work of element functions, all shared by as many tiles as the device holds, +
imbalance: the slowest tile. On a bounded grid: launch + rounds of tiles, one after the other in each program, whole where tiles cost alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rap_contract.profile import KernelSample, Narrow, Rates, TileWork

Grid = int | None
SHARPNESS = 3
"""Of the bend between as long as one tile and as long as all the work (selections of plan 4 over 480 to 3,840 tiles, H200, 2026-11-30)."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Seconds of a kernel alone, by cause."""

    launch: float = 0.0
    memory: float = 0.0
    ops: float = 0.0
    imbalance: float = 0.0
    narrow: float = 0.0
    """More than on its own grid; less than nothing where fewer programs are faster."""

    def __add__(self, other: Terms) -> Terms:
        return Terms(
            launch=self.launch + other.launch,
            memory=self.memory + other.memory,
            ops=self.ops + other.ops,
            imbalance=self.imbalance + other.imbalance,
            narrow=self.narrow + other.narrow,
        )

    @property
    def seconds(self) -> float:
        return self.launch + self.memory + self.ops + self.imbalance + self.narrow


@dataclass(frozen=True)
class Work:
    """What a kernel does, at some rates: seconds on a full device and in one program."""

    memory: float = 0.0
    ops: float = 0.0
    single: float = 0.0
    """All of it in one program, if that is known."""
    tiles: float = 0.0
    critical: float = 0.0
    """The costliest tile of any feature, at the full device's rates."""
    critical_single: float = 0.0
    """The same in one program."""

    def plus(self, other: Work, times: float) -> Work:
        """With `times` as much of another's work; the costliest tile stays that of either."""
        return Work(
            self.memory + times * other.memory,
            self.ops + times * other.ops,
            self.single + times * other.single,
            self.tiles + times * other.tiles,
            max(self.critical, other.critical),
            max(self.critical_single, other.critical_single),
        )

    @property
    def least(self) -> float:
        """Seconds that no grid can avoid: all of the device at work."""
        return self.memory + self.ops


def op_seconds(rates: Rates | Narrow, ops: Mapping[str, float]) -> float:
    """Of element functions."""
    return sum(count * rates.ops.get(name, rates.seconds_per_op) for name, count in ops.items())


def stretched(full_tiles: float, tiles: float) -> float:
    """How many times as long as on a full device: smoothly as long as one tile takes, where there are few, or all the work, where many."""
    return float((1 + (full_tiles / tiles) ** SHARPNESS) ** (1 / SHARPNESS))


def work_of(rates: Rates, num_bytes: float, ops: Mapping[str, float], num_tiles: float) -> Work:
    """A feature's work in a kernel."""
    memory, seconds = num_bytes * rates.seconds_per_byte, op_seconds(rates, ops)
    narrow = rates.narrow
    single = 0.0 if narrow is None else num_bytes * narrow.seconds_per_byte + op_seconds(narrow, ops)
    tiles = num_tiles or 1.0
    return Work(memory, seconds, single, num_tiles, (memory + seconds) / tiles, single / tiles)


def terms(rates: Rates, work: Work, grid: Grid) -> Terms:
    """A kernel alone; its work may be nothing, its launch is not."""
    tiles = max(work.tiles, 1.0)
    stretch = stretched(rates.full_tiles, tiles)
    full = Terms(
        launch=rates.launch_seconds,
        memory=work.memory * stretch,
        ops=work.ops * stretch,
        imbalance=rates.imbalance * work.critical * rates.full_tiles,
    )
    if grid is None or grid >= tiles:
        return full
    return Terms(
        launch=full.launch,
        memory=full.memory,
        ops=full.ops,
        imbalance=full.imbalance,
        narrow=_narrow(rates, work, grid, tiles) - full.seconds,
    )


def _narrow(rates: Rates, work: Work, grid: int, tiles: float) -> float:
    narrow = rates.narrow
    if narrow is None:
        return rates.launch_seconds + work.least * max(1.0, rates.full_tiles / min(grid, tiles))
    taken = max(1.0, tiles / narrow.tiles_at_once)
    slowest = narrow.imbalance * work.critical_single * narrow.tiles_at_once
    return narrow.launch_seconds + work.single / taken * rounds_of(taken, grid, whole=narrow.whole_rounds) + slowest


def rounds_of(tiles: float, programs: float, *, whole: bool) -> float:
    """How many mean tiles the busiest program takes; the costliest come first, so with tiles that differ all end about together."""
    return math.ceil(tiles / programs) if whole else max(1.0, tiles / programs)


def least_rate(rates: Rates, grid: Grid) -> float:
    """At most so much of a kernel's least work is done in a second on a grid."""
    if grid is None:
        return 1.0
    if rates.narrow is None:
        return min(1.0, grid / rates.full_tiles)
    ratios = [
        full / one
        for full, one in (
            (rates.seconds_per_byte, rates.narrow.seconds_per_byte),
            (rates.seconds_per_op, rates.narrow.seconds_per_op),
            *((rate, rates.narrow.ops.get(name, 0.0)) for name, rate in rates.ops.items()),
        )
        if full > 0
        for one in (one or float("inf"),)
    ]
    return math.inf if 0.0 in ratios else grid * max(ratios, default=0.0)


def predicted(rates: Rates, sample: KernelSample) -> float:
    """Seconds of a measured kernel by these rates."""
    tiles = sample.num_tiles

    def all_of(tile: TileWork) -> Work:
        ops = {name: count * tiles for name, count in tile.ops.items()}
        return work_of(rates, tile.num_bytes * tiles, ops, tiles)

    mean, costliest = all_of(sample.mean_tile), all_of(sample.critical_tile)
    return terms(rates, replace(mean.plus(costliest, 0), tiles=tiles), sample.programs).seconds
