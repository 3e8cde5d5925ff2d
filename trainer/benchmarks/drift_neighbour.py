"""Somebody else on the same GPU, who takes some of its SMs whole for as long as they are let. For `drift_bench.py`.

Each of its programs fills the registers of an SM, so nothing else runs there; on a stream of high priority it gets an SM as soon as
one is free. It runs in pieces of PIECE_NS, one queued behind the other, so who waits for the whole device waits no longer than for two of them.
"""

from __future__ import annotations

import threading

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

PIECE_NS = 20_000_000
WARPS = 32
"""1,024 threads: with 64 registers each they hold the 65,536 of an SM (H100 data sheet: 256 KB of registers an SM)."""


@triton.jit
def _occupy(out, nanoseconds):  # type: ignore[no-untyped-def]
    """48 registers of sums a thread that change each turn, until its time is over."""
    began = globaltimer()
    more, fewer = tl.arange(0, 32768).to(tl.float32), tl.arange(0, 16384).to(tl.float32)
    while globaltimer() - began < nanoseconds:
        more, fewer = more * 0.999 + 1.0, fewer * 0.998 + 1.0
    tl.store(out + tl.program_id(0), tl.sum(more) + tl.sum(fewer))


class Neighbour:
    """Takes `sms` SMs while it is let."""

    def __init__(self, device: torch.device, *, sms: int) -> None:
        self.sms, self._device = sms, device
        self._may, self._idle, self._over = threading.Event(), threading.Event(), False
        self._out = torch.zeros(max(sms, 1), device=device)
        self._idle.set()
        kernel = _occupy[(1,)](self._out, 1, num_warps=WARPS)
        self.registers: int = kernel.n_regs
        torch.cuda.synchronize(device)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def let(self, may: bool) -> None:
        """From now on; when it may no more, waits until it has left."""
        if may and self.sms:
            self._idle.clear()
            self._may.set()
        elif not may:
            self._may.clear()
            self._idle.wait()

    def close(self) -> None:
        """Ends the thread: one that waits for the device while CUDA goes aborts the process."""
        self._over = True
        self._may.set()
        self._thread.join()

    def _work(self) -> None:
        torch.cuda.set_device(self._device)
        stream = torch.cuda.Stream(self._device, priority=-5)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ended = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.cuda.stream(stream):
            while self._may.wait() and not self._over:
                for event in ended:
                    event.synchronize()
                    _occupy[(self.sms,)](self._out, PIECE_NS, num_warps=WARPS)
                    event.record()
                    if not self._may.is_set():
                        break
                if not self._may.is_set():
                    stream.synchronize()
                    self._idle.set()
