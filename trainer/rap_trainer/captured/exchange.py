"""Exchanges between the ranks of a step, behind one interface: nothing to do, copy engines, or NCCL.

Copy engines (`SymmetricExchange`): each rank writes its blocks straight into its peers' symmetric
buffers with plain copies, which use no SM, so that everything hides beside them; one barrier after each
exchange makes the blocks visible, and the barrier of the other exchange protects the buffer before it is
written again. Within one NVLink domain only, without multicast. NCCL (`NcclExchange`): anywhere; its
kernels need SMs, and all its collectives stay on one stream order, since two on parallel branches of a graph hang.

The own block is never copied: kernels read the lookup's output and write its gradient in place.

B rows, W ranks, T_w features of rank w, D dim, G elements of the largest block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rap_trainer.captured.blocks import Blocks

MULTICAST_OFF = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


class Exchange(Protocol):
    """What the captured step asks of an exchange. Every method enqueues on the current stream."""

    name: str
    uses_nccl: bool
    """Collectives must keep one stream order on all ranks."""
    ids_in_graph: bool
    """`send_ids` may run beside other exchanges; if not it stays on the training stream."""

    def allocate_grads(self, size: int) -> torch.Tensor:
        """Zeros for the flat dense gradient, where `reduce_grads` can reach it."""

    @property
    def peer(self) -> torch.Tensor:
        """[W * G]: the peers' pooled embeddings; block w starts at w * G."""

    @property
    def peer_grads(self) -> torch.Tensor:
        """[W * G]: gradients for the peers, same layout."""

    @property
    def pooled_grads(self) -> torch.Tensor:
        """[W * B * T * D]: gradients of this rank's lookup output; peers' rows are received."""

    def send_pooled(self, pooled_N: torch.Tensor) -> None:
        """Lookup output [W * B, T * D] to the ranks whose rows it belongs to."""

    def send_grads(self) -> None:
        """`peer_grads` back to the owners; afterwards `pooled_grads` is complete."""

    def send_ids(self, ids_FB: torch.Tensor, slot: int) -> None:
        """Ids in rank-major order to their owners' `ids(slot)`. Visible after the next barrier or collective."""

    def ids(self, slot: int) -> torch.Tensor:
        """[T * W * B] int64: this rank's ids of a slot, feature by feature."""

    def reduce_grads(self) -> None:
        """Sums the flat dense gradients over the ranks."""

    def barrier(self) -> None:
        """Orders `send_ids` of a late window before the next step; nothing when no one else could see it."""


class LocalExchange:
    """One rank: everything is already where it belongs."""

    name = "local"
    uses_nccl = False
    ids_in_graph = True

    def __init__(self, blocks: Blocks, device: torch.device, *, slots: int = 2) -> None:
        self._peer = torch.zeros(4, device=device)
        self._pooled_grads = torch.zeros(blocks.batch_size * blocks.own_width, device=device)
        self._ids = [
            torch.zeros(len(blocks.order) * blocks.batch_size, dtype=torch.int64, device=device) for _ in range(slots)
        ]
        self._device = device

    def allocate_grads(self, size: int) -> torch.Tensor:
        return torch.zeros(size, device=self._device)

    @property
    def peer(self) -> torch.Tensor:
        return self._peer

    @property
    def peer_grads(self) -> torch.Tensor:
        return self._peer

    @property
    def pooled_grads(self) -> torch.Tensor:
        return self._pooled_grads

    def send_pooled(self, pooled_N: torch.Tensor) -> None:
        return

    def send_grads(self) -> None:
        return

    def send_ids(self, ids_FB: torch.Tensor, slot: int) -> None:
        self._ids[slot].copy_(ids_FB.view(-1))

    def ids(self, slot: int) -> torch.Tensor:
        return self._ids[slot]

    def reduce_grads(self) -> None:
        return

    def barrier(self) -> None:
        return


@dataclass(frozen=True)
class _Shared:
    """A symmetric buffer with its handle and every rank's view of it."""

    tensor: torch.Tensor
    handle: Any
    views: tuple[torch.Tensor, ...]


def _shared(size: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup) -> _Shared:
    import torch.distributed._symmetric_memory as symm

    tensor = symm.empty(size, dtype=dtype, device=device)
    tensor.zero_()
    handle = symm.rendezvous(tensor, group)
    views = tuple(handle.get_buffer(p, (size,), dtype) for p in range(group.size()))
    return _Shared(tensor, handle, views)


class SymmetricExchange:
    """Copy engines between the GPUs of one NVLink domain."""

    name = "copy-engine"
    uses_nccl = False
    ids_in_graph = True

    def __init__(
        self, blocks: Blocks, device: torch.device, group: dist.ProcessGroup, *, copies: int = 1, slots: int = 2
    ) -> None:
        """`copies`: parallel copies a peer's block is split into (copy engines used for it)."""
        if os.environ.get(MULTICAST_OFF) != "1":
            raise RuntimeError(f"set {MULTICAST_OFF}=1: multicast can take a shared host's GPUs out of service")
        self._blocks, self._group, self._device = blocks, group, device
        G, W, B = blocks.block_elements, blocks.world_size, blocks.batch_size
        self._pooled = _shared(W * G, torch.float32, device, group)
        self._grads = _shared(W * G, torch.float32, device, group)
        self._peer_grads = torch.zeros(W * G, device=device)
        most = max(blocks.counts) * W * B
        self._ids = _shared(slots * most, torch.int64, device, group)
        self._ids_size = most
        self._streams = [torch.cuda.Stream(device) for _ in range((W - 1) * copies)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._copies = copies
        self._flat: _Shared | None = None
        torch.cuda.synchronize(device)
        dist.barrier(group)

    def allocate_grads(self, size: int) -> torch.Tensor:
        self._flat = _shared(size, torch.float32, self._device, self._group)
        return self._flat.tensor

    @property
    def peer(self) -> torch.Tensor:
        return self._pooled.tensor

    @property
    def peer_grads(self) -> torch.Tensor:
        return self._peer_grads

    @property
    def pooled_grads(self) -> torch.Tensor:
        blocks = self._blocks
        return self._grads.tensor[: blocks.world_size * blocks.batch_size * blocks.own_width]

    def send_pooled(self, pooled_N: torch.Tensor) -> None:
        blocks, G = self._blocks, self._blocks.block_elements
        size = blocks.batch_size * blocks.own_width
        pooled_N = pooled_N.view(-1)
        self._push(
            [
                (self._pooled.views[p][blocks.rank * G : blocks.rank * G + size], pooled_N[p * size : (p + 1) * size])
                for p in self._peers()
            ]
        )
        self._pooled.handle.barrier(channel=0)

    def send_grads(self) -> None:
        blocks, G = self._blocks, self._blocks.block_elements
        pairs = []
        for p in self._peers():
            size = blocks.batch_size * blocks.counts[p] * blocks.dim
            target = self._grads.views[p][blocks.rank * size : (blocks.rank + 1) * size]
            pairs.append((target, self._peer_grads[p * G : p * G + size]))
        self._push(pairs)
        self._grads.handle.barrier(channel=0)

    def send_ids(self, ids_FB: torch.Tensor, slot: int) -> None:
        blocks = self._blocks
        W, B = blocks.world_size, blocks.batch_size
        for owner, (start, count) in enumerate(zip(blocks.starts, blocks.counts, strict=True)):
            view = self._ids.views[owner][slot * self._ids_size : slot * self._ids_size + count * W * B]
            view.view(count, W, B)[:, blocks.rank].copy_(ids_FB[start : start + count])

    def ids(self, slot: int) -> torch.Tensor:
        blocks = self._blocks
        size = blocks.counts[blocks.rank] * blocks.world_size * blocks.batch_size
        return self._ids.tensor[slot * self._ids_size : slot * self._ids_size + size]

    def reduce_grads(self) -> None:
        assert self._flat is not None
        torch.ops.symm_mem.two_shot_all_reduce_(self._flat.tensor, "sum", self._group.group_name)

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


class NcclExchange:
    """NCCL collectives (gloo on CPUs), on whatever connects the ranks."""

    name = "nccl"
    uses_nccl = True
    ids_in_graph = False

    def __init__(self, blocks: Blocks, device: torch.device, group: dist.ProcessGroup, *, slots: int = 2) -> None:
        self._blocks, self._group, self._device = blocks, group, device
        G, W, B = blocks.block_elements, blocks.world_size, blocks.batch_size
        self._peer = torch.zeros(W * G, device=device)
        self._peer_grads = torch.zeros(W * G, device=device)
        self._pooled_grads = torch.zeros(W * B * blocks.own_width, device=device)
        own = blocks.counts[blocks.rank]
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

    def send_pooled(self, pooled_N: torch.Tensor) -> None:
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
            self._none if p == blocks.rank else buffer[p * G : p * G + blocks.batch_size * count * blocks.dim]
            for p, count in enumerate(blocks.counts)
        ]

    def send_ids(self, ids_FB: torch.Tensor, slot: int) -> None:
        blocks = self._blocks
        W, B, own = blocks.world_size, blocks.batch_size, blocks.counts[blocks.rank]
        dist.all_to_all_single(
            self._received, ids_FB.reshape(-1), [own * B] * W, [count * B for count in blocks.counts], group=self._group
        )
        self._ids[slot].view(own, W, B).copy_(self._received.view(W, own, B).transpose(0, 1))

    def ids(self, slot: int) -> torch.Tensor:
        return self._ids[slot]

    def reduce_grads(self) -> None:
        assert self._flat is not None
        dist.all_reduce(self._flat, group=self._group)

    def barrier(self) -> None:
        return
