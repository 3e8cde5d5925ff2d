"""Watches the training loss: its mean for the reports, and NaN or Inf as soon as it can be known without waiting."""

from __future__ import annotations

import math
from collections import deque

import torch


class LossWatch:
    """Sums of one rank. On a GPU a bad loss is seen a few steps late, when its copy has arrived. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._sum = torch.zeros((), dtype=torch.float64, device=device)
        self._arriving: deque[tuple[int, torch.Tensor, torch.cuda.Event]] = deque()
        self.bad_step: int | None = None
        """The first step with a loss that is NaN or Inf."""

    def add(self, step: int, loss_sum: torch.Tensor) -> None:
        """Adds a step's sum of losses."""
        self._sum += loss_sum
        if not self._on_gpu:
            self._judge(step, float(loss_sum))
            return
        copy = torch.empty((), dtype=loss_sum.dtype, pin_memory=True)
        copy.copy_(loss_sum, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record()
        self._arriving.append((step, copy, event))
        while self._arriving and self._arriving[0][2].query():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            arrived, value, _ = self._arriving.popleft()
            self._judge(arrived, float(value))

    def settle(self) -> None:
        """Waits for the values still on their way; for the end of a run."""
        while self._arriving:
            step, value, event = self._arriving.popleft()
            event.synchronize()
            self._judge(step, float(value))

    def take(self) -> torch.Tensor:
        """The sum since the last call, float64 on the device, and begins anew."""
        taken, self._sum = self._sum, torch.zeros_like(self._sum)
        return taken

    def forget(self) -> None:
        """After a rollback: nothing seen so far counts."""
        self.bad_step = None
        self._arriving.clear()
        self._sum.zero_()

    def _judge(self, step: int, value: float) -> None:
        if self.bad_step is None and not math.isfinite(value):
            self.bad_step = step
