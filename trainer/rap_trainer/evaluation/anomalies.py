"""Odd values that ops met, such as NaN under bucketize: added up on the device, read now and then."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Anomalies:
    """Sums of the counters of one rank's batches (`ModelBatch.counters`). Not thread-safe."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def update(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Adds a batch's counters, int64 scalars on any device; does not wait for the device."""
        for name, counter in counters.items():
            if name in self._sums:
                self._sums[name] += counter
            else:
                self._sums[name] = counter.clone()

    def take(self) -> dict[str, int]:
        """Numbers by kind since the last call, and begins anew; waits for the device."""
        taken, self._sums = self._sums, {}
        return {name: int(sum_) for name, sum_ in taken.items()}
