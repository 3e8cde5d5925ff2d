"""Estimate: what branches cost beside training, and what a mapping costs in exchange. Explained terms only.

Beside training a branch costs what probes of the same kind, length and grid added to the measured step, so the slowdown of
both sides is in it. What a kernel costs alone: `kernel_cost.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rap_contract.profile import KINDS, Coefficients, Kind, Profile, WindowProfile
from rap_contract.windows import INLINE, INPUT_DIST, PLACES

from rap_planner.kernel_cost import Grid

Slot = tuple[str, Grid]
"""A window and a number of programs."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds added to the step by a branch of some length: linear between probes, then all of it is exposed."""

    lengths: tuple[float, ...]
    added: tuple[float, ...]

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Curve:
        """Points (length, added); noise that would make more work cheaper is smoothed away."""
        lengths, added = [0.0], [0.0]
        for length, value in sorted(points):
            if length > lengths[-1]:
                lengths.append(length)
                added.append(max(value, added[-1]))
            else:
                added[-1] = max(value, added[-1]) if length > 0 else 0.0
        return cls(lengths=tuple(lengths), added=tuple(added))

    def __call__(self, seconds: float) -> float:
        place = bisect_left(self.lengths, seconds)
        if place == len(self.lengths):
            return self.added[-1] + seconds - self.lengths[-1]
        if place == 0:
            return 0.0
        x0, x1, y0, y1 = self.lengths[place - 1], self.lengths[place], self.added[place - 1], self.added[place]
        return y0 + (y1 - y0) * (seconds - x0) / (x1 - x0)


RAW_EXCHANGES = 2
"""Collectives of raw columns besides the exchange of ids, which stays (`rap_trainer.owners.columns`)."""
SLOWED = 0.01
"""Of the step: what a window's capacity may cost (DESIGN 6)."""
EXPOSED = Curve(lengths=(0.0,), added=(0.0,))
"""Nothing hides."""


class Costs:
    """A profile made ready for estimates."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.coefficients: Coefficients = profile.coefficients
        self._input_dist_seconds = profile.window(INPUT_DIST).seconds or 0.0
        self._curves: dict[tuple[str, Grid, Kind], Curve] = {}
        self.grids: dict[str, tuple[Grid, ...]] = {INLINE: (None,)}
        """Grid sizes that were measured, by window."""
        self.ids_leave_seconds: dict[str, float] = {INLINE: 0.0}
        """What it costs besides that the last kernel ends there, by window."""
        for name in PLACES:
            window = profile.window(name)
            self.ids_leave_seconds[name] = window.ids_leave_seconds
            known: dict[Grid, None] = {None: None, **{response.programs: None for response in window.responses}}
            self.grids[name] = tuple(sorted(known, key=lambda programs: (programs is not None, programs or 0)))
            for programs in known:
                for kind in KINDS:
                    self._curves[name, programs, kind] = _curve(window, programs, kind)

    @property
    def training_seconds(self) -> float:
        """The step without exchange of inputs and preprocessing."""
        return self.profile.step_seconds - self._input_dist_seconds

    def curve(self, window: str, programs: Grid, kind: Kind) -> Curve:
        """What a branch adds to the step in a window; a grid that was not measured there hides nothing."""
        return self._curves.get((window, programs, kind), EXPOSED)

    def exchange_seconds(self, num_bytes: float, own_bytes: float) -> float:
        """The exchange of inputs when the busiest rank moves this much, measured when it moved `own_bytes`."""
        return max(0.0, self._input_dist_seconds + (num_bytes - own_bytes) / self.profile.links.bytes_per_second)

    @property
    def raw_exchange_seconds(self) -> float:
        """What an exchange of raw columns takes before its first byte: one of sizes, one of bytes."""
        return RAW_EXCHANGES * self.profile.links.latency_seconds

    def capacity_seconds(self, window: str) -> float:
        """The longest probe that ran in a window, by the better grid, while the step grew by less than SLOWED."""
        room = SLOWED * self.profile.step_seconds
        responses = self.profile.window(window).responses
        return max((each.solo_seconds for each in responses if each.added_seconds <= room), default=0.0)

    def hideable_seconds(self, gain: Callable[[Grid], float]) -> float:
        """Least work that a step can hide at most, over all windows; `gain`: least work in a second of a branch on a grid."""
        total = 0.0
        for name in PLACES:
            gains = [
                gain(programs) * length - added
                for programs in self.grids[name]
                for kind in KINDS
                for curve in (self.curve(name, programs, kind),)
                for length, added in zip(curve.lengths, curve.added, strict=True)
            ]
            total += max(0.0, *gains)
        return total


def _curve(window: WindowProfile, programs: Grid, kind: Kind) -> Curve:
    points = [
        (response.solo_seconds, response.added_seconds)
        for response in window.responses
        if response.programs == programs and response.kind == kind
    ]
    return Curve.through(points) if points else EXPOSED
