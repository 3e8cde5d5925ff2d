"""Resident memory of a run's processes over time, for the benchmarks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

FIFTHS = 5


class Resident(NamedTuple):
    """Bytes of all processes below one."""

    all: int
    """What several share counts in each."""
    anonymous: int
    """Without what is shared and files: what a leak makes grow, and a ring that fills does not."""


def resident_below(pid: int) -> Resident:
    """Of all descendants of a process, now."""
    total = anonymous = 0
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            memory = process.memory_info()
            total += memory.rss
            anonymous += memory.rss - memory.shared
    return Resident(total, anonymous)


def by_fifth(sizes_bytes: Sequence[int]) -> list[float]:
    """Medians of the fifths of a series, in MiB."""
    bounds = [len(sizes_bytes) * fifth // FIFTHS for fifth in range(FIFTHS + 1)]
    return [round(statistics.median(sizes_bytes[begin:end]) / 2**20, 1) for begin, end in itertools.pairwise(bounds)]
