"""A ring's memory made known to a GPU's driver: what a batch takes from it without a copy goes to the GPU beside the host.

Only the training process does this, for its own mapping; the reader process knows no GPU. Columns with one value a row
are copied out of the ring into memory that is pinned by itself (`stream/kept_memory.py`); lists are not.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

from rap_trainer.stream.kafka.ring import RingReader

log = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: for all contexts of the process


def pin(ring: RingReader, device: torch.device | None, *, runtime: Any = None) -> bool:
    """Until the ring's mapping is gone. Returns whether it is pinned: without a GPU nothing is done, and a refusal is no error.

    `runtime`: the CUDA runtime, torch's if None. The device is named since a thread begins with the first GPU.
    """
    if device is None or device.type != "cuda":
        return False
    memory = ring.memory
    with torch.cuda.device(device):
        cuda: Any = torch.cuda.cudart() if runtime is None else runtime  # type: ignore[no-untyped-call]
        refused = int(cuda.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
    if refused:
        log.warning(
            "the ring of %d MB is not pinned: CUDA error %d; copies of lists wait for the host",
            memory.nbytes >> 20,
            refused,
        )
        return False
    weakref.finalize(ring, _unpin, cuda, memory.ctypes.data, device).atexit = False
    return True


def _unpin(cuda: Any, address: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        cuda.cudaHostUnregister(address)
