"""Probes of the eager step: a function that copies or computes for about so long, on a CPU or on the current GPU stream."""

from __future__ import annotations

import statistics
import time
from typing import Protocol

import torch
from rap_contract.profile import Kind

BLOCK_BYTES = 4 * 2**20
"""A memory probe copies blocks of this size: past the L2 cache of a core."""
SMALL = 16_384
"""Elements a compute probe multiplies and adds: 64 KB, within the L2."""
TRIALS = 3
CALIBRATION_S = 0.005
"""Trials of this length decide how much a probe does in a second."""


class ProbeWork(Protocol):
    """Work of one kind, measured in units."""

    def run(self, amount: int) -> None:
        """Does it; on a GPU it only enqueues."""

    def amount(self, seconds: float) -> int:
        """Units that take about so long alone."""

    def seconds(self, amount: int) -> float:
        """Of so many units alone."""

    def num_bytes(self, amount: int) -> int:
        """Traffic of so many units."""


def probe_work(kind: Kind, device: torch.device) -> ProbeWork:
    """A probe of this device."""
    if device.type == "cuda":
        from rap_trainer.profiling.gpu_probe_work import GpuProbeWork  # Triton

        return GpuProbeWork(kind, device)
    return CpuProbeWork(kind)


class CpuProbeWork:
    """Units are blocks copied, or passes over a small tensor."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._source = torch.zeros(BLOCK_BYTES, dtype=torch.uint8)
        self._target = torch.zeros_like(self._source)
        self._small = torch.ones(SMALL)
        trial = 1
        while self.seconds(trial) < CALIBRATION_S and trial < 2**20:
            trial *= 2
        self._unit_seconds = self.seconds(trial) / trial

    def run(self, amount: int) -> None:
        for _ in range(amount):
            if self._kind == "memory":
                self._target.copy_(self._source)
            else:
                self._small.mul_(1.000001).add_(1e-9)

    def amount(self, seconds: float) -> int:
        return max(1, round(seconds / self._unit_seconds))

    def seconds(self, amount: int) -> float:
        times = []
        for _ in range(TRIALS):
            began = time.perf_counter()
            self.run(amount)
            times.append(time.perf_counter() - began)
        return max(statistics.median(times), 1e-9)

    def num_bytes(self, amount: int) -> int:
        return 2 * BLOCK_BYTES * amount if self._kind == "memory" else 0
