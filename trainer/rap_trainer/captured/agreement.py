"""Asks all ranks what a batch needs while it is prepared, so that the answer is there when it is trained."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rap_trainer.world import World


class Agreement:
    """The largest need of all ranks: asked while a batch is prepared, needed when it is trained."""

    def __init__(self, need: int, world: World) -> None:
        """Collective; does not wait."""
        self._need = torch.tensor([need])
        self._work = None
        if world.size > 1:
            self._work = dist.all_reduce(self._need, dist.ReduceOp.MAX, group=world.control_group, async_op=True)

    def reached(self) -> int:
        """The answer, which by now has arrived or soon will."""
        self.settle()
        return int(self._need)

    def settle(self) -> None:
        """Waits for the other ranks."""
        if self._work is not None:
            self._work.wait()
            self._work = None
