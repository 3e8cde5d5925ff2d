"""CPU seconds of processes, by whose they are: the operator's, the servers', the benchmark's own."""

from __future__ import annotations

from typing import NamedTuple

import psutil


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
