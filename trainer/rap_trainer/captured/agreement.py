"""Asks all ranks something while a batch is prepared, so that the answer is there when it is trained."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rap_trainer.world import World


class Agreement:
    """Whether something holds on every rank, asked while a batch is prepared and needed when it is trained."""

    def __init__(self, holds: bool, world: World) -> None:
        """Collective; does not wait."""
        self._misfits = torch.tensor([int(not holds)])
        self._work = None
        if world.size > 1:
            self._work = dist.all_reduce(self._misfits, dist.ReduceOp.MAX, group=world.control_group, async_op=True)

    def reached(self) -> bool:
        """The answer, which by now has arrived or soon will."""
        self.settle()
        return not self._misfits.item()

    def settle(self) -> None:
        """Waits for the other ranks."""
        if self._work is not None:
            self._work.wait()
            self._work = None
