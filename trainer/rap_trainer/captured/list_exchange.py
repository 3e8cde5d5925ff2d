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

    layout: ListLayout

    def outgoing(self, slot: int) -> Lists:
        """What preprocessing fills: the layout's blocks."""

    def incoming(self, slot: int) -> Lists:
        """W blocks of this rank's features, one from each rank, then W blocks of the features that every rank is sent."""

    def send(self, slot: int) -> None:
        """Outgoing blocks to their owners."""


def _lists(num_ids: int, num_lengths: int, device: torch.device, *, weighted: bool) -> Lists:
    return Lists(
        ids_N=torch.zeros(num_ids, dtype=torch.int64, device=device),
        lengths=torch.zeros(num_lengths, dtype=torch.int32, device=device),
        weights_N=torch.zeros(num_ids, device=device) if weighted else None,
    )


def _outgoing(layout: ListLayout, device: torch.device) -> Lists:
    num_lengths = sum(len(features) for features in layout.features) * layout.batch_size
    return _lists(layout.size, num_lengths, device, weighted=layout.weighted)


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
        self.num_ids, self.num_lengths = self.received(rank)

    def received(self, owner: int) -> tuple[int, int]:
        """Ids and lengths that a rank receives."""
        layout = self.layout
        features = len(layout.owned[owner]) + len(layout.split)
        return self.world_size * (
            layout.room[owner] + layout.split_room
        ), self.world_size * features * layout.batch_size

    def to(self, owner: int) -> tuple[tuple[slice, slice], ...]:
        """Ids and lengths of the outgoing blocks."""
        own, split = self.layout.block(owner), self.layout.block(-2)
        return (own, split) if self.layout.split else (own,)

    def at(self, owner: int, sender: int) -> tuple[tuple[slice, slice], ...]:
        """The same of the blocks that `owner` receives."""
        layout, found, start, first = self.layout, [], 0, 0
        for room, features in ((layout.room[owner], layout.owned[owner]), (layout.split_room, layout.split)):
            lengths = len(features) * layout.batch_size
            ids_at, lengths_at = start + sender * room, first + sender * lengths
            found.append((slice(ids_at, ids_at + room), slice(lengths_at, lengths_at + lengths)))
            start, first = start + self.world_size * room, first + self.world_size * lengths
        return tuple(found[: len(self.to(owner))])


class LocalLists:
    """One rank: what it sends is what it receives."""

    def __init__(self, layout: ListLayout, device: torch.device, *, slots: int = 2) -> None:
        self.layout, self._places = layout, _Places(layout, 0)
        self._slots = [_outgoing(layout, device) for _ in range(slots)]

    def outgoing(self, slot: int) -> Lists:
        return self._slots[slot]

    def incoming(self, slot: int) -> Lists:
        return self._slots[slot].block(slice(self._places.num_ids), slice(self._places.num_lengths))

    def send(self, slot: int) -> None:
        return


class SymmetricLists:
    """Copies straight into the owners' memory."""

    def __init__(
        self, layout: ListLayout, rank: int, device: torch.device, group: dist.ProcessGroup, *, slots: int = 2
    ) -> None:
        self.layout = layout
        places = self._places = _Places(layout, rank)
        W = places.world_size
        num_ids, num_lengths = map(max, zip(*(places.received(owner) for owner in range(W)), strict=True))
        ids = shared(slots * num_ids, torch.int64, device, group)
        lengths = shared(slots * num_lengths, torch.int32, device, group)
        weights = shared(slots * num_ids, torch.float32, device, group) if layout.weighted else None
        self._keep = (ids, lengths, weights)
        self._outgoing = [_outgoing(layout, device) for _ in range(slots)]
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
            for at, of in zip(places.at(owner, places.rank), places.to(owner), strict=True):
                for to, what in self._incoming[slot][owner].block(*at).pairs(self._outgoing[slot].block(*of)):
                    to.copy_(what)


class NcclLists:
    """An all-to-all for each tensor, and an all-gather of what every rank is sent (gloo on CPUs)."""

    def __init__(
        self, layout: ListLayout, rank: int, device: torch.device, group: dist.ProcessGroup, *, slots: int = 2
    ) -> None:
        self.layout = layout
        places = self._places = _Places(layout, rank)
        self._group = group
        self._outgoing = [_outgoing(layout, device) for _ in range(slots)]
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
        W, rank = self._places.world_size, self._places.rank
        for to, what in self._incoming[slot].pairs(self._outgoing[slot]):
            sent = self._sent_lengths if to.dtype == torch.int32 else self._sent_ids
            own = W * sent[rank]
            dist.all_to_all_single(to[:own], what[: sum(sent)], [sent[rank]] * W, sent, group=self._group)
            if self.layout.split:
                block = self.layout.block(-2)[to.dtype == torch.int32]
                dist.all_gather(list(to[own:].chunk(W)), what[block], group=self._group)
