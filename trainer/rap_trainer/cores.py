"""How many cores this process may use: fewer than the machine has in a pod with a CPU limit, or when pinned."""

from __future__ import annotations

import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Of a container's own group: quota and period in microseconds, the quota `max` where there is no limit (cgroup v2)."""


def usable_cores(cpu_max: Path = CPU_MAX) -> int:
    """At least 1. A limit of 3.5 cores counts as 3: a fourth thread would be held back with all others waiting for it."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text().split()
    except OSError:
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
