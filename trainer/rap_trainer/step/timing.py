"""How long each part of a step takes, measured without slowing it: host clocks on a CPU, events on a GPU.

Events are read only once the GPU has passed them; nothing here waits for it.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

MAX_PENDING = 4096
"""Event pairs not yet passed that are kept; the oldest are dropped beyond."""


class PartTimer:
    """Seconds by part since the last reading. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=MAX_PENDING)

    @contextmanager
    def host(self, part: str) -> Iterator[None]:
        """Times host work."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - began

    @contextmanager
    def device(self, part: str) -> Iterator[None]:
        """Times what the current stream does; on a CPU that is host work."""
        if not self._on_gpu:
            with self.host(part):
                yield
            return
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        begin.record()
        try:
            yield
        finally:
            end.record()
            self._pending.append((part, begin, end))

    def take(self) -> Mapping[str, float]:
        """Seconds by part of what has ended since the last call, and begins anew."""
        while self._pending and self._pending[0][2].query():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            part, begin, end = self._pending.popleft()
            self._seconds[part] += begin.elapsed_time(end) / 1e3
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken
