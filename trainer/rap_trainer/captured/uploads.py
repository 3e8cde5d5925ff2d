"""Brings raw batches to the device, on a stream of its own: as they are where their memory is pinned, packed first otherwise.

Large ones (hundreds of lists, hundreds of megabytes) in a thread of its own, so that the training thread only waits. Not here: what a
buffer holds, and which size it has.

B rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from rap_trainer.batch import RawBatch
from rap_trainer.captured.copy_rows import Copier
from rap_trainer.captured.preprocess import FusedPreprocessor
from rap_trainer.captured.raw import PACKERS, Overflow, RawBuffer
from rap_trainer.captured.raw_layout import RawLayout

NUM_PINNED = 3
"""Pinned buffers: two whose copies may be on their way, and one to pack meanwhile."""
LARGE_BYTES = 32 << 20
"""Room of lists from which on another thread is woken, which takes about 0.1 ms (H200 host); packing so much takes 3."""


class Uploads:
    """At most one upload a slot is under way. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._packers = ThreadPoolExecutor(PACKERS - 1, thread_name_prefix="rap-pack")
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="rap-upload", initializer=torch.cuda.set_device, initargs=(device,)
        )
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._copier = Copier(self._stream)
        self._begun = 0
        self._under_way: list[Future[float] | None] = [None, None]
        self._copied: list[torch.cuda.Event | None] = [None] * NUM_PINNED
        """Comes when the copy that a pinned buffer was lent for is done, or a later one."""
        self._batches: list[RawBatch | None] = [None] * NUM_PINNED
        """Whose memory, or pinned buffer of the same number, a copy reads until its event has come."""
        self.waited_s = 0.0
        """How long the host has waited for the GPU to take a buffer, or for the thread: back pressure, not work."""

    def begin(self, raw: RawBatch, slot: int, to: FusedPreprocessor, pinned: Sequence[RawBuffer]) -> None:
        """Waits until the slot's raw buffer has been read, so the host is never two batches ahead of preprocessing.

        One more pinned buffer than slots: packing need not wait, and a step is enqueued long before it is due. Raises Overflow.
        """
        self.enqueued(slot)
        number, self._begun = self._begun % NUM_PINNED, self._begun + 1
        host = pinned[number]
        if not is_large(host.layout):
            self.waited_s += self._upload(raw, slot, to, host, number)
            return
        if needed := host.shortage(raw):
            raise Overflow(needed)
        self._under_way[slot] = self._thread.submit(self._upload, raw, slot, to, host, number)

    def enqueued(self, slot: int) -> None:
        """Waits until the slot's copy is enqueued: what waits for it on the device must come behind. Raises what went wrong."""
        under_way, self._under_way[slot] = self._under_way[slot], None
        if under_way is not None:
            began = time.perf_counter()
            under_way.result()
            self.waited_s += time.perf_counter() - began

    def settle(self) -> None:
        """The same of both slots."""
        for slot in range(len(self._under_way)):
            self.enqueued(slot)

    def close(self) -> None:
        """Waits for what was begun."""
        self._thread.shutdown()
        self._packers.shutdown()

    def _upload(self, raw: RawBatch, slot: int, to: FusedPreprocessor, host: RawBuffer, number: int) -> float:
        """The seconds it waited for the GPU."""
        target = to.raw[slot]
        if (copied := self._copied[number]) is not None:
            copied.synchronize()
        copies = target.copies(host, raw)
        if copies is None:
            host.pack(raw, self._packers)
        began = time.perf_counter()
        to.consumed[slot].synchronize()
        waited_s = time.perf_counter() - began
        if copies is None:
            with torch.cuda.stream(self._stream):
                target.receive(host)
        else:
            target.receive_as_it_is(host, raw, copies, self._copier)
        to.arrived[slot].record(self._stream)
        self._copied[number], self._batches[number] = to.arrived[slot], raw
        return waited_s


def is_large(layout: RawLayout) -> bool:
    """Whether lists of several elements may hold so much that copying takes longer than waking a thread."""
    several = sum(run.end - run.start for run in layout.runs if run.size > layout.batch_size)
    return several >= LARGE_BYTES
