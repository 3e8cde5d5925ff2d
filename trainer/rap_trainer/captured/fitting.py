"""Graphs for as many ids as batches hold, beside those for all that their blocks have room for.

A block's room is a bound: what no op of the job can exceed. Samples, nulls and limits leave less, and sorting and updating places that no id
fills takes time in every step (H200, plan 4, where they are 29 %: 1.3 of 24 ms). So once the host has seen what batches hold, a second pair of
graphs is captured, and a step takes it if its batch fits, which the host asks of the device before it enqueues the step; what it is
told was counted while the step before ran. A batch that does not fit takes the graphs that hold everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

import torch

from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.size_builder import SizeBuilder
from rap_trainer.captured.sizes import Fitted, Size
from rap_trainer.captured.slots import Slot, jagged

log = logging.getLogger(__name__)


class Fitting:
    """Of one runtime. Captures in the builder's thread, while the graphs there are train."""

    def __init__(self, builder: SizeBuilder, *, waits: bool, drain: Callable[[], None] | None = None) -> None:
        """`waits`: for each capture, since NCCL's calls must not come from two threads at once. `drain`: waits until all steps so far have run."""
        self._builder, self._waits, self._drain = builder, waits, drain or _drain
        self._asked: tuple[Size, Future[Fitted | None]] | None = None
        self._telling: Size | None = None
        """Whose latest step tells what its other slot holds."""
        self.waited_s = 0.0
        """How long the host has waited for the number of a batch's ids."""

    def graphs(self, size: Size, slot: Slot, *, filled_now: bool) -> CapturedSteps:
        """What a step on a slot's batch takes. `filled_now`: not by the step before."""
        self.install()
        if size.lists is None:
            return size.graphs
        fitted = size.fitted
        held = jagged(slot).last_filled if fitted is None else self._told(size, slot, filled_now)
        self._telling = None if fitted is None else size
        if held and self._asked is None:
            room = size.id_room.add(held, None if fitted is None else fitted.num_ids)
            if room is not None:
                self._ask(size, room)
        return size.graphs if fitted is None or held > fitted.num_ids else fitted.graphs

    def _told(self, size: Size, slot: Slot, filled_now: bool) -> int:
        """Ids of the slot's batch, when the device has counted them; the step to come will tell those of the other slot."""
        began = time.perf_counter()
        if filled_now or self._telling is not size:  # an earlier step may yet tell of another batch
            self._drain()
        held = jagged(slot).num_filled()
        self.waited_s += time.perf_counter() - began
        jagged(size.slots[1 - slot.index]).expect()
        return held

    def now(self, size: Size) -> None:
        """Captures for what both slots hold; the device is idle and nothing else is captured."""
        self._telling = None
        held = 0 if size.lists is None else max(jagged(slot).last_filled for slot in size.slots)
        self.again(size, size.id_room.over(held))

    def again(self, size: Size, room: int | None) -> None:
        """The same for so many ids, after the size's step has changed; None: none."""
        self.install()
        size.close_fitted()
        if room is not None:
            self._ask(size, room)
            self._builder.beside.run(lambda: None)
            self.install()

    def _ask(self, size: Size, room: int) -> None:
        step = size.step
        log.info("captures steps for %d ids beside those for all that may come", room)
        self._asked = size, self._builder.beside.begin(lambda: self._builder.fitted(size, step, room))
        if self._waits:
            wait([self._asked[1]])

    def install(self) -> None:
        """Takes over what has been captured, unless the size's step is another by now."""
        if self._asked is None or not self._asked[1].done():
            return
        (size, future), self._asked = self._asked, None
        try:
            fitted = future.result()
        except RuntimeError as error:
            log.warning("steps go on with room for all ids: %s", error)
            return
        if fitted is None:
            return
        if fitted.step is size.step:
            fitted, size.fitted = size.fitted, fitted
        if fitted is not None:
            self._builder.beside.close_behind(fitted.graphs)


def _drain() -> None:
    torch.cuda.current_stream().synchronize()
