"""Progressive evaluation: every batch is scored before it is learned from.

    evaluator = Evaluator(job.spec.evaluation, device)
    evaluator.update(logits_B, labels_B, global_rows=batch.global_rows)      # each step, each rank
    evaluation = evaluator.summary(all_reduce)                              # now and then, all ranks together
    if (divergence := check(evaluation, job.spec.evaluation)): ...           # guard.py

`all_reduce` sums a float64 tensor over the ranks in place (`torch.distributed.all_reduce`); the default leaves it
as it is, which is right for one rank. Not here: what to do about a divergence, and who shows the numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from rap_contract.training import Evaluation as EvaluationSpec

from rap_trainer.evaluation import sketch
from rap_trainer.evaluation.scores import Evaluation

NUM_SUBWINDOWS = 20
"""The window moves in steps of a twentieth of its length."""

AllReduce = Callable[[torch.Tensor], object]


def alone(cells: torch.Tensor) -> None:
    """The sum over one rank."""


class Evaluator:
    """Sketches of this rank's rows: a sliding window and the life of the job. Not thread-safe.

    The window is a ring of closed sub-windows and an open one. Once `windowRows` rows of all ranks were seen it covers
    at least those, and fewer than windowRows / 20 + one global batch more. All ranks close sub-windows at the same
    step, because only `global_rows` decides it, so their rings add up slot by slot.
    """

    def __init__(self, spec: EvaluationSpec, device: torch.device) -> None:
        self._window_rows = spec.window_rows
        self._subwindow_rows = -(-spec.window_rows // NUM_SUBWINDOWS)
        self._device = device
        self._open_C = sketch.empty(device)
        self._open_rows = 0
        self._closed: deque[tuple[int, torch.Tensor]] = deque()
        self._past_C = sketch.empty(device)  # every closed sub-window, also those that left the window

    def update(self, logits_B: torch.Tensor, labels_B: torch.Tensor, *, global_rows: int | None = None) -> None:
        """Scores one batch of this rank; B may be 0. `global_rows`: rows of all ranks in this step (default: B)."""
        self.accumulate(logits_B, labels_B)
        self.advance(labels_B.shape[0] if global_rows is None else global_rows)

    def accumulate(self, logits_B: torch.Tensor, labels_B: torch.Tensor) -> None:
        """The part of `update` that runs on the device: fixed addresses, no host value, fit for a CUDA graph."""
        sketch.accumulate(self._open_C, logits_B, labels_B)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What is accumulated inside is forgotten: warm-up steps, and a captured step's rows of padding."""
        kept_C = self._open_C.clone()
        yield
        self._open_C.copy_(kept_C)

    def advance(self, global_rows: int) -> None:
        """The part of `update` that runs on the host, after `accumulate`: moves the window by rows of all ranks."""
        self._open_rows += global_rows
        if self._open_rows >= self._subwindow_rows:
            self._closed.append((self._open_rows, self._open_C.clone()))
            self._past_C += self._open_C
            self._open_C.zero_()
            self._open_rows = 0
        total = self._rows_in_window()
        while self._closed and (total - self._closed[0][0] >= self._window_rows or len(self._closed) > NUM_SUBWINDOWS):
            total -= self._closed.popleft()[0]

    def summary(self, all_reduce: AllReduce = alone) -> Evaluation:
        """Scores of all ranks. Collective: every rank calls it after the same step. Synchronises with the device."""
        window_C = self._open_C.clone()
        for _, cells_C in self._closed:
            window_C += cells_C
        both_2C = torch.stack([window_C, self._past_C + self._open_C])
        all_reduce(both_2C)
        return Evaluation(
            window=sketch.scores(both_2C[0]),
            life=sketch.scores(both_2C[1]),
            window_full=self._rows_in_window() >= self._window_rows,
        )

    def state(self, all_reduce: AllReduce = alone) -> dict[str, torch.Tensor]:
        """The state of all ranks as CPU tensors of fixed shapes, equal on every rank; save it once. Collective.

        `rows` int64 [1 + S]: rows of the open and of each closed sub-window, oldest first, 0 where there is none.
        `cells` float64 [2 + S, C]: all the past, the open sub-window, the closed ones.
        """
        blank = sketch.empty(self._device)
        padding = NUM_SUBWINDOWS - len(self._closed)
        cells = [self._past_C, self._open_C, *(cells_C for _, cells_C in self._closed), *[blank] * padding]
        cells_SC = torch.stack(cells)
        all_reduce(cells_SC)
        rows = [self._open_rows, *(rows for rows, _ in self._closed), *[0] * padding]
        return {"rows": torch.tensor(rows, dtype=torch.int64), "cells": cells_SC.cpu()}

    def load_state(self, state: Mapping[str, torch.Tensor], *, rank: int) -> None:
        """Takes up a saved state, on any number of ranks: rank 0 gets the sketches, the others only the row counts.

        Raises ValueError if the state is not one of this version.
        """
        rows, cells_SC = state["rows"], state["cells"]
        shapes = (1 + NUM_SUBWINDOWS,), (2 + NUM_SUBWINDOWS, sketch.NUM_CELLS)
        if (tuple(rows.shape), tuple(cells_SC.shape)) != shapes:
            raise ValueError(
                f"evaluation state has another layout than this version's; "
                f"start a new checkpoint directory: {tuple(rows.shape)}, {tuple(cells_SC.shape)} instead of {shapes}"
            )
        cells_SC = cells_SC.to(self._device, torch.float64, copy=True)
        if rank != 0:
            cells_SC.zero_()
        self._past_C.copy_(cells_SC[0])
        self._open_C.copy_(cells_SC[1])
        self._open_rows, *closed_rows = rows.tolist()
        self._closed = deque((n, cells_SC[2 + i].clone()) for i, n in enumerate(closed_rows) if n > 0)

    def _rows_in_window(self) -> int:
        return self._open_rows + sum(rows for rows, _ in self._closed)
