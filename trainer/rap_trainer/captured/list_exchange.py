"""Moves lists of ids to their tables' owners, by copy engines or NCCL; nothing to move on one rank.

Apart from `exchange`, because rooms may grow while a job runs, and only these buffers with them. Visible to the owner after the
exchange's next barrier or collective, as with single ids.

B rows, W ranks, T features of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from rap_trainer.captured.exchange import Exchange
from rap_trainer.captured.lists import ListLayout
from rap_trainer.captured.symmetric_exchange import shared
from rap_trainer.world import World


@dataclass(frozen=True, kw_only=True)
class Lists:
    """Ids, lengths and weights of several blocks, flat."""

    ids_N: torch.Tensor
    """int64."""
    lengths: torch.Tensor
    """int32; [features][B] of one block after the other."""
    weights_N: torch.Tensor | None

    def block(self, ids: slice, lengths: slice) -> Lists:
        return Lists(
            ids_N=self.ids_N[ids],
            lengths=self.lengths[lengths],
            weights_N=None if self.weights_N is None else self.weights_N[ids],
        )

    def pairs(self, other: Lists) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(mine, the other's) of each tensor."""
        pairs = [(self.ids_N, other.ids_N), (self.lengths, other.lengths)]
        if self.weights_N is not None and other.weights_N is not None:
            pairs.append((self.weights_N, other.weights_N))
        return pairs


class ListExchange(Protocol):
    """What the step asks of it. Enqueues on the current stream."""

    def outgoing(self, slot: int) -> Lists:
        """What preprocessing fills: a block for each owner, at the layout's places."""

    def incoming(self, slot: int) -> Lists:
        """W blocks of this rank's features, one from each rank."""

    def send(self, slot: int) -> None:
        """Outgoing blocks to their owners."""


def _lists(num_ids: int, num_lengths: int, device: torch.device, *, weighted: bool) -> Lists:
    return Lists(
        ids_N=torch.zeros(num_ids, dtype=torch.int64, device=device),
        lengths=torch.zeros(num_lengths, dtype=torch.int32, device=device),
        weights_N=torch.zeros(num_ids, device=device) if weighted else None,
    )


def make_lists(layout: ListLayout, exchange: Exchange, world: World) -> ListExchange:
    """By the same means as the exchange. Collective."""
    if exchange.name == "local":
        return LocalLists(layout, world.device)
    kind = NcclLists if exchange.uses_nccl else SymmetricLists
    return kind(layout, world.rank, world.device, world.data_group)


class _Places:
    """Where blocks lie in what a rank sends and receives."""

    def __init__(self, layout: ListLayout, rank: int) -> None:
        self.layout, self.rank = layout, rank
        self.world_size = len(layout.owned)
        self.num_ids = self.world_size * layout.room[rank]
        self.num_lengths = self.world_size * len(layout.owned[rank]) * layout.batch_size

    def to(self, owner: int) -> tuple[slice, slice]:
        """Ids and lengths of the outgoing block."""
        layout = self.layout
        start, row, B = layout.starts[owner], layout.rows[owner], layout.batch_size
        return (
            slice(start, start + layout.room[owner]),
            slice(row * B, (row + len(layout.owned[owner])) * B),
        )

    def at(self, owner: int, sender: int) -> tuple[slice, slice]:
        """The same of the block that `owner` receives."""
        room, lengths = self.layout.room[owner], len(self.layout.owned[owner]) * self.layout.batch_size
        return slice(sender * room, (sender + 1) * room), slice(sender * lengths, (sender + 1) * lengths)


class LocalLists:
    """One rank: what it sends is what it receives."""

    def __init__(self, layout: ListLayout, device: torch.device, *, slots: int = 2) -> None:
        rows = sum(len(features) for features in layout.owned) * layout.batch_size
        self._slots = [_lists(layout.size, rows, device, weighted=layout.weighted) for _ in range(slots)]

    def outgoing(self, slot: int) -> Lists:
        return self._slots[slot]

    def incoming(self, slot: int) -> Lists:
        return self._slots[slot]

    def send(self, slot: int) -> None:
        return


class SymmetricLists:
    """Copies straight into the owners' memory."""

    def __init__(
        self, layout: ListLayout, rank: int, device: torch.device, group: dist.ProcessGroup, *, slots: int = 2
    ) -> None:
        places = self._places = _Places(layout, rank)
        W, B = places.world_size, layout.batch_size
        num_ids = W * max(layout.room)
        num_lengths = W * max(len(features) for features in layout.owned) * B
        ids = shared(slots * num_ids, torch.int64, device, group)
        lengths = shared(slots * num_lengths, torch.int32, device, group)
        weights = shared(slots * num_ids, torch.float32, device, group) if layout.weighted else None
        self._keep = (ids, lengths, weights)
        rows = sum(len(features) for features in layout.owned) * B
        self._outgoing = [_lists(layout.size, rows, device, weighted=layout.weighted) for _ in range(slots)]
        self._incoming = [
            [
                Lists(
                    ids_N=ids.views[p][slot * num_ids : (slot + 1) * num_ids],
                    lengths=lengths.views[p][slot * num_lengths : (slot + 1) * num_lengths],
                    weights_N=None if weights is None else weights.views[p][slot * num_ids : (slot + 1) * num_ids],
                )
                for p in range(W)
            ]
            for slot in range(slots)
        ]
        torch.cuda.synchronize(device)
        dist.barrier(group)

    def outgoing(self, slot: int) -> Lists:
        return self._outgoing[slot]

    def incoming(self, slot: int) -> Lists:
        places = self._places
        return self._incoming[slot][places.rank].block(slice(places.num_ids), slice(places.num_lengths))

    def send(self, slot: int) -> None:
        places = self._places
        for step in range(places.world_size):
            owner = (places.rank + step) % places.world_size
            target = self._incoming[slot][owner].block(*places.at(owner, places.rank))
            for to, what in target.pairs(self._outgoing[slot].block(*places.to(owner))):
                to.copy_(what)


class NcclLists:
    """One all-to-all for each tensor (gloo on CPUs)."""

    def __init__(
        self, layout: ListLayout, rank: int, device: torch.device, group: dist.ProcessGroup, *, slots: int = 2
    ) -> None:
        places = self._places = _Places(layout, rank)
        self._group = group
        rows = sum(len(features) for features in layout.owned) * layout.batch_size
        self._outgoing = [_lists(layout.size, rows, device, weighted=layout.weighted) for _ in range(slots)]
        self._incoming = [
            _lists(places.num_ids, places.num_lengths, device, weighted=layout.weighted) for _ in range(slots)
        ]
        B = layout.batch_size
        self._sent_ids, self._sent_lengths = list(layout.room), [len(features) * B for features in layout.owned]

    def outgoing(self, slot: int) -> Lists:
        return self._outgoing[slot]

    def incoming(self, slot: int) -> Lists:
        return self._incoming[slot]

    def send(self, slot: int) -> None:
        W = self._places.world_size
        for to, what in self._incoming[slot].pairs(self._outgoing[slot]):
            sent = self._sent_lengths if to.dtype == torch.int32 else self._sent_ids
            dist.all_to_all_single(to, what, [to.numel() // W] * W, sent, group=self._group)
