"""The captured step's probe on the eager step's side stream. GPU only."""

from __future__ import annotations

import torch
from rap_contract.profile import Kind

from rap_trainer.profiling.probes import INT_BYTES, Probes, ProbeSize, memory_size


class GpuProbeWork:
    """Units are elements copied, or tiles computed."""

    def __init__(self, kind: Kind, device: torch.device) -> None:
        self._kind = kind
        self._probes = Probes(device)
        self._set = 0

    def run(self, amount: int) -> None:
        if amount != self._set:
            self._probes.set(self._size(amount))
            self._set = amount
        self._probes.launch(0, None, None)

    def amount(self, seconds: float) -> int:
        return self._probes.sized(self._kind, seconds).amount

    def seconds(self, amount: int) -> float:
        self._set = 0
        return self._probes.solo_seconds(self._size(amount), None)

    def num_bytes(self, amount: int) -> int:
        return self._size(amount).num_bytes

    def _size(self, amount: int) -> ProbeSize:
        return memory_size(amount * 2 * INT_BYTES) if self._kind == "memory" else ProbeSize("compute", amount, 0)
