"""Parallel branches of the step: streams on a GPU, plain order on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

NAMES = ("tables", "exchange", "bottom", "tail", "learn", "prepare", "ids", "progress")
"""Branches of a step."""
PRIORITIES = {"bottom": -2, "tail": -1, "learn": -1}
"""Branches whose kernels are taken before others' where SMs are short, lower ones first. The bottom MLP's backward is a long chain of small ones (627 -> 579 us a
step with one GPU, 717 -> 710 with two: H200, plan 0, batch 4096, 2026-11-30). What dense gradients wait for comes before the tables' update, which ended 30 us
earlier: 596 -> 576 us with one GPU, 657 -> 643 with two (the same, later)."""


class Lane:
    """One branch. Work enqueued `on` it runs beside the current stream until `join`."""

    def __init__(self, device: torch.device, *, priority: int = 0) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._forked = False

    def reset(self) -> None:
        """Forgets earlier forks: a capture must not join a lane that is not part of it."""
        self._forked = False

    def fork(self) -> None:
        """What follows on the lane runs after what the current stream holds now."""
        self._forked = True
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())

    def join(self) -> None:
        """What follows on the current stream runs after what the lane holds now; nothing if it was not forked."""
        if self._stream is not None and self._forked:
            torch.cuda.current_stream().wait_stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """What the lane holds now, for `reached`."""
        return None if self._stream is None else self._stream.record_event()

    @staticmethod
    def reached(mark: torch.cuda.Event | None) -> None:
        """What follows on the current stream runs after what a lane held at the mark."""
        if mark is not None:
            torch.cuda.current_stream().wait_event(mark)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Enqueues on the lane instead of the current stream."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield


class Lanes:
    """All lanes of a step, made once: libraries keep workspace for each stream they have seen, for ever."""

    def __init__(self, device: torch.device) -> None:
        lanes = (Lane(device, priority=PRIORITIES.get(name, 0)) for name in NAMES)
        self.tables, self.exchange, self.bottom, self.tail, self.learn, self.prepare, self.ids, self.progress = lanes
        self.capture = Lane(device)
        """What warm-up and capture run on."""

    def reset(self) -> None:
        """At the start of a step's recipe."""
        for name in NAMES:
            getattr(self, name).reset()
