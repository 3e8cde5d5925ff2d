"""Captured sizes: several rooms for lists, each with buffers and graphs of its own, and which one a step takes.

A job whose lists differ from batch to batch would otherwise pay for the longest in every step, or be captured again whenever one is a
little longer. Each size holds whatever a smaller one holds. Not here: capturing, and what a batch needs on other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rap_trainer.batch import RawBatch
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.list_exchange import ListExchange
from rap_trainer.captured.preprocess import FusedPreprocessor
from rap_trainer.captured.raw import RawBuffer
from rap_trainer.captured.raw_layout import RawLayout
from rap_trainer.captured.room import Room
from rap_trainer.captured.slots import Slot, jagged
from rap_trainer.captured.step import TrainStep

Int64s = npt.NDArray[np.int64]

MOST_SIZES = 3
"""Kept at once: a size of plan 4 at batch 4096 holds gigabytes."""
PATIENCE = 64
"""Steps that must all fit into a smaller size before it is taken: a change of size exposes one batch's preprocessing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """Graphs for batches of so many ids at most."""

    num_ids: int
    slots: tuple[Slot, Slot]
    """The size's, whose lookups read so many."""
    step: TrainStep
    graphs: CapturedSteps


@dataclass(kw_only=True, eq=False)
class Size:
    """What a step needs of its own for one room of lists."""

    number: int
    """Unique in a runtime."""
    layout: RawLayout
    lists: ListExchange | None
    slots: tuple[Slot, Slot]
    preprocessor: FusedPreprocessor
    pinned: Sequence[RawBuffer]
    step: TrainStep
    graphs: CapturedSteps
    last_step: int = 0
    """Number of the latest step that took it; 0: none has."""
    fitted: Fitted | None = None
    """For batches of fewer ids than there is room for."""

    def __post_init__(self) -> None:
        self.rooms = np.array(list(self.layout.capacities.values()), dtype=np.int64)
        self.id_room = Room(0 if self.lists is None else jagged(self.slots[0]).kjt.values().numel())

    @property
    def smallest_slots(self) -> tuple[Slot, Slot]:
        """Those of the fitted graphs, if both batches fit; else all there is room for."""
        fitted = self.fitted
        if fitted is None or not all(0 < jagged(slot).last_filled <= fitted.num_ids for slot in self.slots):
            return self.slots
        return fitted.slots

    def close(self) -> None:
        """Gives all graphs back."""
        self.graphs.close()
        self.close_fitted()

    def close_fitted(self) -> None:
        """Gives back those for fewer ids."""
        if self.fitted is not None:
            self.fitted.graphs.close()
            self.fitted = None

    def holds(self, elements: Int64s) -> bool:
        """Whether lists of so many elements (`elements_of`) have room."""
        return bool((elements <= self.rooms).all())


def elements_of(raw: RawBatch, layout: RawLayout) -> Int64s:
    """Elements of each list column of a layout in a batch, in the layout's order."""
    columns = raw.columns
    return np.array([columns[name].values_N.numel() if name in columns else 0 for name in layout.capacities], np.int64)


def smallest(sizes: Sequence[Size], elements: Int64s) -> int:
    """Index of the first size that holds the elements; how many there are if none does."""
    return next((i for i, size in enumerate(sizes) if size.holds(elements)), len(sizes))


class Choice:
    """Up at once, down with patience. The same on every rank that hears the same needs."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._below: list[int] = []
        """What the latest steps needed, all below the current size."""

    def of(self, needed: int, current: int) -> int:
        """The size of a step that needs this one at least. Indices of ascending sizes."""
        if needed >= current:
            self._below.clear()
            return needed
        self._below.append(needed)
        if len(self._below) < self._patience:
            return current
        smaller = max(self._below)
        self._below.clear()
        return smaller


def kept(sizes: Sequence[Size], *, most: int = MOST_SIZES) -> list[Size]:
    """Those to keep beside one more: the latest taken, in their order; none that no step has taken."""
    taken = sorted((size for size in sizes if size.last_step), key=lambda size: -size.last_step)[: most - 1]
    return [size for size in sizes if size in taken]
