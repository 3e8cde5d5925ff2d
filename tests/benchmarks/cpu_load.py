"""CPU seconds of processes, by whose they are: the operator's, the servers', the benchmark's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

RESTING, RESTING_S = 0.3, 5.0
"""Share of one core, over so many seconds, below which servers are at rest: thousands of objects are never free."""


class Load(NamedTuple):
    """CPU seconds by whom they were taken."""

    operator: float
    servers: float
    program: float

    def since(self, before: Load) -> dict[str, float]:
        """Figures of the time between two looks."""
        return {
            "cpu_s": self.operator - before.operator,
            "servers_cpu_s": self.servers - before.servers,
            "program_cpu_s": self.program - before.program,
        }


def cpu_s(process: psutil.Process) -> float:
    """Of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def seconds_to_rest(load: Callable[[], Load], *, until_s: float) -> float:
    """Waits until servers and operator are at rest, or until the monotonic clock says so."""
    begun_s, share = time.monotonic(), 1.0
    while share > RESTING and time.monotonic() < until_s:
        before = load()
        time.sleep(RESTING_S)
        after = load()
        share = (after.servers + after.operator - before.servers - before.operator) / RESTING_S
    return time.monotonic() - begun_s
