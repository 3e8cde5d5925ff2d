"""How many ids of lists a step is worth being captured for, where batches hold fewer than there is room for. Pure."""

from __future__ import annotations

import math

from rap_trainer.captured.blocks import pad_to
from rap_trainer.captured.lists import PLACE_IDS

LEAST_REST = 512 << 10
"""Places without an id that are worth graphs of their own: 0.1 ms a step (H200)."""
SPARE = 1.002
"""Room over what most batches hold."""
SHRUNK = 0.95
"""Share of the ids captured for below which it is done again."""
OUTGROWING = 16
"""One batch of so many may hold more than is captured for."""
WINDOWS = (16, 1024)
"""Batches that are looked at before the first capture; twice as many before each other one, so many at most."""


class Room:
    """How many ids to capture for, from what batches have held. Pure."""

    def __init__(self, places: int) -> None:
        """`places`: the ids that the blocks have room for."""
        self._places = places
        self._window = WINDOWS[0]
        self._held: list[int] = []

    def over(self, held: int) -> int | None:
        """Room for batches of so many ids; None if what it would save is too little, or none came."""
        room = pad_to(math.ceil(SPARE * held), PLACE_IDS)
        return room if held and self._places - room >= LEAST_REST else None

    def add(self, held: int, current: int | None) -> int | None:
        """For how many ids to capture after one more batch; None: nothing is to be captured. `current`: for how many it is."""
        self._held.append(held)
        if len(self._held) < self._window:
            return None
        most = sorted(self._held)[-1 - len(self._held) // OUTGROWING]
        self._held.clear()
        room = self.over(most)
        if room is None or (current is not None and most <= current and room > SHRUNK * current):
            return None
        self._window = min(2 * self._window, WINDOWS[1])
        return room
