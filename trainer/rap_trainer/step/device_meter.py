"""How busy the accelerator is and how much of its memory the process has needed, from the driver: no work on the device."""

from __future__ import annotations

import torch
from rap_contract import metrics

from rap_trainer.display.metric_store import MetricStore


class DeviceMeter:
    """The gauges of one rank's device; nothing on a CPU. Not thread-safe but for the store."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._told = True
        """Whether the driver tells how busy the device is."""

    def report(self, device: torch.device) -> None:
        """Once a report: the driver's own sample of the last second or less, and the peak since the process began."""
        if device.type != "cuda":
            return
        self._store.set(metrics.DEVICE_MEMORY_BYTES, torch.cuda.max_memory_reserved(device))
        if not self._told:
            return
        try:
            self._store.set(metrics.DEVICE_BUSY_RATIO, torch.cuda.utilization(device) / 100)
        except (ModuleNotFoundError, RuntimeError):  # without NVML, or a driver or container that does not tell
            self._told = False
