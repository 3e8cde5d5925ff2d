"""The exchange by NCCL collectives (gloo on CPUs), on whatever connects the ranks.

NCCL's kernels need SMs. All its collectives stay on one stream order, since two on parallel branches of a graph hang.

B rows, W ranks, T features whose ids a rank is sent, G elements of the largest block.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from rap_trainer.captured.blocks import Blocks


class NcclExchange:
    """NCCL collectives (gloo on CPUs), on whatever connects the ranks."""

    name = "nccl"
    uses_nccl = True
    ids_in_graph = False
    parts = 1

    def __init__(self, blocks: Blocks, device: torch.device, group: dist.ProcessGroup, *, slots: int = 2) -> None:
        self._blocks, self._group, self._device = blocks, group, device
        W, B = blocks.world_size, blocks.batch_size
        self._peer = torch.zeros(blocks.peer_elements, device=device)
        self._peer_grads = torch.zeros(blocks.peer_elements, device=device)
        self._pooled_grads = torch.zeros(blocks.pooled_elements, device=device)
        own = blocks.num_sent[blocks.rank]
        self._received = torch.zeros(W * own * B, dtype=torch.int64, device=device)
        self._ids = [torch.zeros(own * W * B, dtype=torch.int64, device=device) for _ in range(slots)]
        self._none = torch.empty(0, device=device)
        self._flat: torch.Tensor | None = None

    def allocate_grads(self, size: int) -> torch.Tensor:
        self._flat = torch.zeros(size, device=self._device)
        return self._flat

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
        return None

    def pooled_placed(self) -> None:
        raise AssertionError("no rank reaches another's memory")

    def send_pooled(self, pooled_N: torch.Tensor, rows: slice) -> None:
        assert rows == slice(0, self._blocks.batch_size), rows
        self._all_to_all(self._peer_blocks(self._peer), self._owner_rows(pooled_N.view(-1)))

    def send_grads(self) -> None:
        self._all_to_all(self._owner_rows(self._pooled_grads), self._peer_blocks(self._peer_grads))

    def _all_to_all(self, received: list[torch.Tensor], sent: list[torch.Tensor]) -> None:
        """One block to and from each peer. Gloo has no all-to-all of tensors that differ in size."""
        if self._device.type == "cuda":
            dist.all_to_all(received, sent, group=self._group)
            return
        calls = []
        for p in range(self._blocks.world_size):
            if sent[p].numel():
                calls.append(dist.isend(sent[p], dist.get_global_rank(self._group, p), group=self._group))
            if received[p].numel():
                calls.append(dist.irecv(received[p], dist.get_global_rank(self._group, p), group=self._group))
        for call in calls:
            if call is not None:
                call.wait()

    def _owner_rows(self, pooled_N: torch.Tensor) -> list[torch.Tensor]:
        """This rank's lookup output by the rank whose rows they are, nothing for itself."""
        blocks = self._blocks
        size = blocks.batch_size * blocks.own_width
        return [
            self._none if p == blocks.rank else pooled_N[p * size : (p + 1) * size] for p in range(blocks.world_size)
        ]

    def _peer_blocks(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """A peer buffer by owner, nothing for itself."""
        blocks, G = self._blocks, self._blocks.block_elements
        return [
            self._none if p == blocks.rank else buffer[p * G : p * G + blocks.batch_size * width]
            for p, width in enumerate(blocks.widths)
        ]

    def send_ids(self, ids_TB: torch.Tensor, slot: int) -> None:
        blocks = self._blocks
        W, B, own = blocks.world_size, blocks.batch_size, blocks.num_sent[blocks.rank]
        sizes = [count * B for count in blocks.num_sent]
        dist.all_to_all_single(self._received, ids_TB.reshape(-1), [own * B] * W, sizes, group=self._group)
        self._ids[slot].view(own, W, B).copy_(self._received.view(W, own, B).transpose(0, 1))

    def ids(self, slot: int) -> torch.Tensor:
        return self._ids[slot]

    def reduce_grads(self, part: slice) -> None:
        assert self._flat is not None
        dist.all_reduce(self._flat[part], group=self._group)

    def barrier(self) -> None:
        return
