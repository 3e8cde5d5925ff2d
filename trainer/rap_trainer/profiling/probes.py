"""Probes of a GPU as work for the captured step: one launch a window, its sizes set between replays.

A memory probe copies, a compute probe multiplies and adds; both stand for fused kernels of their kind. Not here: what
they find.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rap_contract.profile import Kind

from rap_trainer.captured.slots import Slot
from rap_trainer.profiling.launches import graph_seconds
from rap_trainer.profiling.probe_kernel import probe_kernel

PROGRAMS_PER_SM = 8
"""Of a full grid, as the fused kernels that take tiles in turn have (`fusion/runner.py`)."""
TILE = 2048
"""Elements: as large as a lane's tile where the grid is bounded (`fusion/groups.py`)."""
WARPS = 8
ITERATIONS = 256
INT_BYTES = 4
BUFFER_BYTES = 2**30
"""Of what is read and written together; longer copies begin anew, far past the cache."""
MAX_BYTES = 2**33
"""Of a probe: its elements are counted in 32 bits."""


@dataclass(frozen=True)
class ProbeSize:
    """What a probe does in one run."""

    kind: Kind
    amount: int
    """memory: int32 elements copied; compute: tiles."""
    num_bytes: int
    """Read and written."""


class Probes:
    """`num` probes, launch k of a schedule is probe k. Satisfies the captured step's `Preprocessor`."""

    def __init__(self, device: torch.device, *, num: int = 1, stamped: bool = False) -> None:
        self._num, self._stamped = num, stamped
        self._device = device
        self._source = torch.zeros(BUFFER_BYTES // 2 // INT_BYTES, dtype=torch.int32, device=device)
        self._target = torch.zeros_like(self._source)
        self._sizes = torch.zeros(num, 2, dtype=torch.int32, device=device)
        self.stamps = torch.zeros(num, dtype=torch.int64, device=device)
        """Nanoseconds of the GPU's clock at which each probe began, if stamped."""
        self._full = PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count

    @property
    def num_kernels(self) -> int:
        return self._num

    def launch(self, kernel: int, slot: Slot | None, programs: int | None) -> None:
        """Enqueues a probe; the slot is left as it is."""
        del slot
        probe_kernel[(self._full if programs is None else programs,)](
            self._source,
            self._target,
            self._sizes[kernel],
            self.stamps,
            kernel,
            self._source.numel() // TILE,
            TILE=TILE,
            ITERATIONS=ITERATIONS,
            STAMP=self._stamped,
            num_warps=WARPS,
        )

    def set(self, size: ProbeSize | None, kernel: int = 0) -> None:
        """What probe `kernel` does from the next run on; None: nothing."""
        sizes = [0, 0] if size is None else [size.amount, 0] if size.kind == "memory" else [0, size.amount]
        self._sizes[kernel].copy_(torch.tensor(sizes, dtype=torch.int32))

    def solo_seconds(self, size: ProbeSize | None, programs: int | None) -> float:
        """A probe alone."""
        self.set(size)
        return graph_seconds([lambda: self.launch(0, None, programs)], rounds=8)[0]

    def sized(self, kind: Kind, seconds: float) -> ProbeSize:
        """A probe that takes about so long alone on a full grid, launch included."""
        trial = memory_size(256 * 2**20) if kind == "memory" else ProbeSize("compute", 64 * self._full, 0)
        empty, full = self.solo_seconds(None, None), self.solo_seconds(trial, None)
        amount = max(1, int(trial.amount * (seconds - empty) / (full - empty)))
        return memory_size(amount * 2 * INT_BYTES) if kind == "memory" else ProbeSize("compute", amount, 0)


def memory_size(num_bytes: int) -> ProbeSize:
    """A probe that moves so many bytes, half of them read."""
    elements = min(num_bytes, MAX_BYTES) // (2 * INT_BYTES)
    return ProbeSize("memory", elements, elements * 2 * INT_BYTES)
