"""Exchanges between the ranks of a step, behind one interface, and the one of a single rank.

`symmetric_exchange` uses copy engines, `nccl_exchange` NCCL; `choose_exchange` measures which is faster.

The own block is never copied: kernels read the lookup's output and write its gradient in place.

Behind the peers' blocks a peer buffer has room for the features that are not exchanged whole (`Blocks.beside_start`); what
is there, others write.

B rows, W ranks, T features whose ids this rank is sent, N elements of its lookup output, G elements of the largest block.
"""

from __future__ import annotations

from typing import Protocol

import torch

from rap_trainer.captured.blocks import Blocks


class Exchange(Protocol):
    """What the captured step asks of an exchange. Every method enqueues on the current stream."""

    name: str
    uses_nccl: bool
    """Collectives must keep one stream order on all ranks."""
    ids_in_graph: bool
    """`send_ids` may run beside other exchanges; if not it stays on the training stream."""
    parts: int
    """Ranges of rows that `send_pooled` is worth being called for, one after the other, while the dense part works on those before."""

    def allocate_grads(self, size: int) -> torch.Tensor:
        """Zeros for the flat dense gradient, where `reduce_grads` can reach it."""

    @property
    def peer(self) -> torch.Tensor:
        """[peer_elements]: the peers' pooled embeddings; block w starts at w * G."""

    @property
    def peer_grads(self) -> torch.Tensor:
        """The same of gradients for the peers."""

    @property
    def pooled_grads(self) -> torch.Tensor:
        """[N]: gradients of this rank's lookup output; peers' rows are received."""

    def places(self, own: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """For each rank, where its rows of this rank's lookup [B * width] are read: `own` for this one. None: out of reach."""

    def pooled_placed(self) -> None:
        """What all ranks have put into such places before is visible behind it."""

    def send_pooled(self, pooled_N: torch.Tensor, rows: slice) -> None:
        """Lookup output [W * B, width] of some of each rank's rows to the ranks they belong to; all of them if `parts` is 1."""

    def send_grads(self) -> None:
        """`peer_grads` back to the owners; afterwards `pooled_grads` is complete."""

    def send_ids(self, ids_TB: torch.Tensor, slot: int) -> None:
        """Ids of every rank's features, rank-major, to their owners' `ids(slot)`. Visible after the next barrier or collective."""

    def ids(self, slot: int) -> torch.Tensor:
        """[T * W * B] int64: this rank's ids of a slot, feature by feature."""

    def reduce_grads(self, part: slice) -> None:
        """Sums these elements of the flat dense gradients over the ranks."""

    def barrier(self) -> None:
        """Orders `send_ids` of a late window before the next step; nothing when no one else could see it."""


class LocalExchange:
    """One rank: everything is already where it belongs."""

    name = "local"
    uses_nccl = False
    ids_in_graph = True
    parts = 1

    def __init__(self, blocks: Blocks, device: torch.device, *, slots: int = 2) -> None:
        size = max(4, blocks.peer_elements)
        self._peer, self._peer_grads = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self._pooled_grads = torch.zeros(blocks.pooled_elements, device=device)
        self._ids = [
            torch.zeros(len(blocks.sent) * blocks.batch_size, dtype=torch.int64, device=device) for _ in range(slots)
        ]
        self._device = device

    def allocate_grads(self, size: int) -> torch.Tensor:
        return torch.zeros(size, device=self._device)

    @property
    def peer(self) -> torch.Tensor:
        return self._peer

    @property
    def peer_grads(self) -> torch.Tensor:
        return self._peer_grads

    @property
    def pooled_grads(self) -> torch.Tensor:
        return self._pooled_grads

    def places(self, own: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        return (own,)

    def pooled_placed(self) -> None:
        return

    def send_pooled(self, pooled_N: torch.Tensor, rows: slice) -> None:
        return

    def send_grads(self) -> None:
        return

    def send_ids(self, ids_TB: torch.Tensor, slot: int) -> None:
        self._ids[slot].copy_(ids_TB.view(-1))

    def ids(self, slot: int) -> torch.Tensor:
        return self._ids[slot]

    def reduce_grads(self, part: slice) -> None:
        return

    def barrier(self) -> None:
        return
