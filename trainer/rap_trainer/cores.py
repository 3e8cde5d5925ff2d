"""How many cores this process may use, and how many of them are a rank's: fewer than the machine has in a pod with a CPU limit, or when pinned."""

from __future__ import annotations

import os
from pathlib import Path

from rap_contract.source import Source

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


def threads_of_rank(source: Source, ranks: int, cores: int) -> int:
    """For computing, of each of so many ranks on `cores`; at least 1. A reader of a topic has a core of its own.

    Threads of one parallel region wait for the last of them, which takes turns with a reader: on two cores beside reader,
    broker and producer two threads took 29 ms of CPU for a step of 512 rows, one 21 (8,000 rows/s, 2026-11-30).
    """
    readers = 0 if source.kafka is None else ranks * source.kafka.readers_per_rank
    return max(1, (cores - readers) // ranks)
