"""Scales of a chart: where a value lies on the page, and round numbers to label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Values from `low` to `high` on page coordinates from `start` to `end`; `high` > `low`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Page coordinate of a value, beyond the ends for values outside."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """At most `most` round values within the axis, ascending."""
        step = _round_step((self.high - self.low) / max(most - 1, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.12g}") for i in range(first, last + 1)][:most]


def span(values: Iterable[float], *, floor: float | None = None, ceiling: float | None = None) -> tuple[float, float]:
    """Lowest and highest of the values with some air; `floor` is the lowest shown, `ceiling` the highest."""
    known = list(values)
    low = min(known, default=0.0) if floor is None else floor
    high = max(known, default=1.0)
    if ceiling is not None:
        high = min(high, ceiling)
    least = 0.02 * max(abs(low), abs(high)) or 1.0  # a flat curve is not blown up to noise
    if high - low < least:
        low, high = (low, low + least) if floor is not None else ((low + high - least) / 2, (low + high + least) / 2)
    air = 0.06 * (high - low)
    return low if floor is not None else low - air, high + air


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= step * (1 - 1e-9))
