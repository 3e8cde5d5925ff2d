"""The exchange on copy engines: between GPUs of one NVLink domain, without multicast.

Each rank writes its blocks straight into its peers' symmetric buffers with plain copies, which use no SM, so that
everything hides beside them. One barrier after each exchange makes the blocks visible, and the barrier of the other exchange
protects a buffer before it is written again.

B rows, W ranks, T features whose ids a rank is sent, G elements of the largest block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rap_trainer.captured.blocks import Blocks

MULTICAST_OFF = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


@dataclass(frozen=True)
class Shared:
    """A symmetric buffer with its handle and every rank's view of it."""

    tensor: torch.Tensor
    handle: Any
    views: tuple[torch.Tensor, ...]


def shared(size: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup) -> Shared:
    """Zeros of the same size on every rank. Collective."""
    import torch.distributed._symmetric_memory as symm

    tensor = symm.empty(size, dtype=dtype, device=device)
    tensor.zero_()
    handle = symm.rendezvous(tensor, group)
    views = tuple(handle.get_buffer(p, (size,), dtype) for p in range(group.size()))
    return Shared(tensor, handle, views)


class SymmetricExchange:
    """Copy engines between the GPUs of one NVLink domain."""

    name = "copy-engine"
    uses_nccl = False
    ids_in_graph = True
    parts = 2

    def __init__(
        self, blocks: Blocks, device: torch.device, group: dist.ProcessGroup, *, copies: int = 1, slots: int = 2
    ) -> None:
        """`copies`: parallel copies a peer's block is split into (copy engines used for it)."""
        if os.environ.get(MULTICAST_OFF) != "1":
            raise RuntimeError(f"set {MULTICAST_OFF}=1: multicast can take a shared host's GPUs out of service")
        self._blocks, self._group, self._device = blocks, group, device
        G, W, B = blocks.block_elements, blocks.world_size, blocks.batch_size
        self._pooled = shared(blocks.peer_elements, torch.float32, device, group)
        spare = blocks.spare_rows * max(blocks.widths)
        self._grads = shared(W * G + spare, torch.float32, device, group)
        self._peer_grads = torch.zeros(blocks.peer_elements, device=device)
        most = max(blocks.num_sent) * W * B
        self._ids = shared(slots * most, torch.int64, device, group)
        self._ids_size = most
        self._streams = [torch.cuda.Stream(device) for _ in range((W - 1) * copies)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._copies = copies
        self._flat: Shared | None = None
        torch.cuda.synchronize(device)
        dist.barrier(group)

    def allocate_grads(self, size: int) -> torch.Tensor:
        self._flat = shared(size, torch.float32, self._device, self._group)
        return self._flat.tensor

    @property
    def peer(self) -> torch.Tensor:
        return self._pooled.tensor

    @property
    def peer_grads(self) -> torch.Tensor:
        return self._peer_grads

    @property
    def pooled_grads(self) -> torch.Tensor:
        return self._grads.tensor[: self._blocks.pooled_elements]

    def places(self, own: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        blocks = self._blocks
        start = blocks.rank * blocks.block_elements
        block = slice(start, start + blocks.batch_size * blocks.own_width)
        return tuple(own if p == blocks.rank else view[block] for p, view in enumerate(self._pooled.views))

    def pooled_placed(self) -> None:
        self._pooled.handle.barrier(channel=0)

    def send_pooled(self, pooled_N: torch.Tensor, rows: slice) -> None:
        blocks, G = self._blocks, self._blocks.block_elements
        pooled_WBN = pooled_N.view(-1)[: blocks.world_size * blocks.batch_size * blocks.own_width]
        pooled_WBN = pooled_WBN.view(blocks.world_size, blocks.batch_size, blocks.own_width)
        begin, end = (row * blocks.own_width for row in (rows.start, rows.stop))
        block = slice(blocks.rank * G + begin, blocks.rank * G + end)
        self._push([(self._pooled.views[p][block], pooled_WBN[p, rows].view(-1)) for p in self._peers()])
        self.pooled_placed()

    def send_grads(self) -> None:
        blocks, G = self._blocks, self._blocks.block_elements
        pairs = []
        for p in self._peers():
            size = blocks.batch_size * blocks.widths[p]
            target = self._grads.views[p][blocks.rank * size : (blocks.rank + 1) * size]
            pairs.append((target, self._peer_grads[p * G : p * G + size]))
        self._push(pairs)
        self._grads.handle.barrier(channel=0)

    def send_ids(self, ids_TB: torch.Tensor, slot: int) -> None:
        blocks = self._blocks
        W, B, start = blocks.world_size, blocks.batch_size, 0
        for owner, count in enumerate(blocks.num_sent):
            view = self._ids.views[owner][slot * self._ids_size : slot * self._ids_size + count * W * B]
            view.view(count, W, B)[:, blocks.rank].copy_(ids_TB[start : start + count])
            start += count

    def ids(self, slot: int) -> torch.Tensor:
        blocks = self._blocks
        size = blocks.num_sent[blocks.rank] * blocks.world_size * blocks.batch_size
        return self._ids.tensor[slot * self._ids_size : slot * self._ids_size + size]

    def reduce_grads(self, part: slice) -> None:
        assert self._flat is not None
        torch.ops.symm_mem.two_shot_all_reduce_(self._flat.tensor[part], "sum", self._group.group_name)

    def barrier(self) -> None:
        self._ids.handle.barrier(channel=0)

    def _peers(self) -> list[int]:
        """The other ranks, starting after this one so that no two ranks write to one peer at first."""
        blocks = self._blocks
        return [(blocks.rank + i) % blocks.world_size for i in range(1, blocks.world_size)]

    def _push(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        parts = [
            (d, s)
            for target, source in pairs
            for d, s in zip(target.chunk(self._copies), source.chunk(self._copies), strict=True)
        ]
        current = torch.cuda.current_stream(self._device)
        for stream, (target, source) in zip(self._streams, parts, strict=False):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                target.copy_(source)
        for stream in self._streams[: len(parts)]:
            current.wait_stream(stream)
