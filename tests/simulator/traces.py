"""Shapes of drift as functions of time, after those published for autoscalers' tests: flat, diurnal, step, ramp, burst,
backlog, a noisy neighbour, metrics that break. Each gives the world, and what is wrong with the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.job import World

HOUR_S, DAY_S = 3600.0, 86_400.0
LENGTH = 20.0
Fault = Literal["", "missing", "nan", "partial", "hanging", "lying", "other plan"]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A named drift; `fault_at` says what is wrong with the metrics at a time."""

    name: str
    world_at: Callable[[float], World]
    fault_at: Callable[[float], Fault] = lambda time_s: ""


def _flat(time_s: float) -> World:
    return World(length=LENGTH)


def _diurnal(time_s: float) -> World:
    """Nearly twice as long at the peak, half at the trough, as clicks over a day."""
    return World(length=LENGTH * 2 ** (0.9 * math.sin(2 * math.pi * time_s / DAY_S)))


def _step(time_s: float) -> World:
    """Three times as long from the third day on."""
    return World(length=LENGTH * (3 if time_s > 3 * DAY_S else 1))


def _ramp(time_s: float) -> World:
    """Three times as long over ten days."""
    return World(length=LENGTH * 3 ** min(time_s / (10 * DAY_S), 1.0))


def _burst(time_s: float) -> World:
    """Three times as long for four minutes in every six hours: over before a plan could pay."""
    return World(length=LENGTH * (3 if (time_s - HOUR_S) % (6 * HOUR_S) < 240 else 1))


def _backlog(time_s: float) -> World:
    """An outage each second day: an hour's backlog of longer lists, worked off in three."""
    into_s = time_s % (2 * DAY_S) - DAY_S
    is_behind = 0 <= into_s < 3 * HOUR_S
    return World(
        length=LENGTH * (1.6 if is_behind else 1), lag_s=3600 * (1 - into_s / (3 * HOUR_S)) if is_behind else 0
    )


def _neighbour(time_s: float) -> World:
    """Somebody takes half of the machine for eight hours a day."""
    return World(length=LENGTH, neighbour=0.5 if time_s % DAY_S > 16 * HOUR_S else 0.0)


def _flicker(time_s: float) -> World:
    """A neighbour that comes and goes every 150 s: as long as a window."""
    return World(length=LENGTH, neighbour=0.5 if int(time_s / 150) % 2 else 0.0)


def _broken(time_s: float) -> Fault:
    kinds: tuple[Fault, ...] = ("missing", "nan", "partial", "hanging", "lying", "other plan")
    hour = int(time_s / HOUR_S)
    return kinds[hour // 2 % len(kinds)] if hour % 2 else ""


TRACES: Mapping[str, Trace] = {
    trace.name: trace
    for trace in (
        Trace(name="flat", world_at=_flat),
        Trace(name="diurnal", world_at=_diurnal),
        Trace(name="step", world_at=_step),
        Trace(name="ramp", world_at=_ramp),
        Trace(name="burst", world_at=_burst),
        Trace(name="backlog", world_at=_backlog),
        Trace(name="neighbour", world_at=_neighbour),
        Trace(name="flicker", world_at=_flicker),
        Trace(name="broken metrics", world_at=_flat, fault_at=_broken),
        Trace(name="diurnal, broken", world_at=_diurnal, fault_at=_broken),
    )
}
