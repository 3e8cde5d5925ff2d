# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The lookup's input from lists that all ranks have sent: feature by feature, with a bag behind the rows for what is no id.

Rank w's block holds its ids feature by feature; the lookup wants each feature's ids of all ranks together. Nothing is read on
the host: the number of ids is the blocks' room. The lookup goes by the bags and sees nothing of what they do not fill; the tables' update,
which sorts all ids there are, must find a bag for each, so in the offsets that it reads the rest goes in equal shares to the last bags of the
last feature, in S rows behind all others, spread over that feature's table (in one bag one warp would work on all of it). No gradient reaches
these bags, so tables whose update is nothing without a gradient (SGD, Adagrad, rowwise Adagrad) keep those rows as they are. Both
offsets are there before the step, so ids are sorted beside the lookup.

Where tables are split by columns, a rank is sent two blocks by each, its own features' and those of all split tables, of which it looks
up some, some several times (`Received`).

W ranks, B rows of a rank, T looked-up features of this rank, R = W * B + S bags of a feature, C room of a block, N ids of the lookup,
F received features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torchrec import KeyedJaggedTensor

from rap_trainer.captured.list_exchange import Lists

TILE = 1024
PROGRAMS_PER_SEGMENT = 4
REST_SEGMENTS = 64
"""Segments that share what is no id."""


@triton.jit
def share_rest_kernel(offsets_ptr, last, S, N, TILE: tl.constexpr):
    """Ends of the last S bags, up to `last`, where the ids behind the filled ones are shared by them."""
    filled = tl.load(offsets_ptr + last - S)
    bag = tl.program_id(0) * TILE + tl.arange(0, TILE) + 1
    tl.store(offsets_ptr + last - S + bag, filled + (N - filled) * bag // S, mask=bag <= S)


@triton.jit
def gather_lists_kernel(
    ids_ptr,
    weights_ptr,
    offsets_ptr,
    sources_ptr,
    out_ptr,
    out_weights_ptr,
    B,
    W,
    T,
    S,
    C,
    N,
    tail_rows,
    skipped,
    T_PADDED: tl.constexpr,
    SOURCES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid: (T * W - skipped + some, programs a segment). Segment (t, w): rank w's ids of feature t; the last ones: what is no id.

    Without SOURCES a block's features are those looked up, so a feature's place follows from the lengths of those before.
    """
    segment = skipped + tl.program_id(0)
    R = W * B + S
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    step = tl.num_programs(1) * TILE
    if segment >= T * W:
        filled = tl.load(offsets_ptr + T * R - S)
        place = filled + (segment - T * W) * step + lane
        room = tl.cast(N, tl.int64)
        step *= skipped + tl.num_programs(0) - T * W
        while tl.min(place, 0) < room:
            tl.store(out_ptr + place, (place - filled) % tail_rows, mask=place < room)
            if WEIGHTED:
                tl.store(out_weights_ptr + place, tl.zeros([TILE], tl.float32), mask=place < room)
            place += step
    else:
        t = segment // W
        w = segment % W
        if SOURCES:
            source = tl.load(sources_ptr + segment)
        else:
            before = tl.arange(0, T_PADDED)
            first = offsets_ptr + before * R + w * B
            held = tl.load(first + B, mask=before < t, other=0) - tl.load(first, mask=before < t, other=0)
            source = tl.sum(held, 0) + w * C
        begin = tl.load(offsets_ptr + t * R + w * B)
        num = tl.load(offsets_ptr + t * R + (w + 1) * B) - begin
        at = lane
        while tl.min(at, 0) < num:
            tl.store(out_ptr + begin + at, tl.load(ids_ptr + source + at, mask=at < num, other=0), mask=at < num)
            if WEIGHTED:
                weight = tl.load(weights_ptr + source + at, mask=at < num, other=0.0)
                tl.store(out_weights_ptr + begin + at, weight, mask=at < num)
            at += step


@dataclass(frozen=True, kw_only=True)
class Received:
    """What each rank sends to this one, where tables are split by columns. A value."""

    own: tuple[str, ...]
    own_room: int
    split: tuple[str, ...]
    split_room: int

    def places(self, features: tuple[str, ...]) -> list[int]:
        """F index of each looked-up feature."""
        place = {name: i for i, name in enumerate((*self.own, *self.split))}
        return [place[name] for name in features]

    def num_ids(self, features: tuple[str, ...]) -> int:
        """Of the lookup's ids from one rank, at most."""
        most = max(Counter(name for name in features if name in self.split).values(), default=0)
        return self.own_room + most * self.split_room


class JaggedInputs:
    """The lookup's input of one slot."""

    def __init__(
        self,
        features: tuple[str, ...],
        incoming: Lists,
        *,
        world_size: int,
        batch_size: int,
        spare_rows: int,
        tail_rows: int,
        received: Received | None = None,
    ) -> None:
        """`spare_rows`: S; `tail_rows`: of the table of the last feature. `received`: None if each rank sends what is looked up."""
        self._incoming, self._tail_rows = incoming, tail_rows
        self._sizes = W, B, T, S = world_size, batch_size, len(features), spare_rows
        R, N, device = W * B + S, incoming.ids_N.numel(), incoming.ids_N.device
        self._sources: _Sources | None = None
        if received is not None:
            N = W * received.num_ids(features)
            self._sources = _Sources(received, features, world_size=W, batch_size=B, device=device)
        self._lengths_TR = torch.zeros(T, R, dtype=torch.int32, device=device)
        self._offsets = torch.zeros(T * R + 1, dtype=torch.int64, device=device)
        self._update_offsets = torch.zeros_like(self._offsets)
        self._in_place = W == 1 and received is None
        """What has arrived lies as the lookup wants it, but for what is no id."""
        values_N, weights_N = incoming.ids_N, incoming.weights_N
        if not self._in_place:
            values_N = torch.zeros(N, dtype=torch.int64, device=device)
            weights_N = None if incoming.weights_N is None else torch.zeros(N, device=device)
        self.kjt = KeyedJaggedTensor(
            keys=list(features),
            values=values_N,
            weights=weights_N,
            lengths=self._lengths_TR.view(-1),
            offsets=self._offsets,
            stride=R,
            length_per_key=[N] + [0] * (T - 1),  # nobody splits it: all features are one group of tables
            offset_per_key=[0] + [N] * T,
        )
        self._share_rest(self._update_offsets)  # a warm-up trains before any batch is there

    def fill(self) -> None:
        """From what has arrived, for the lookup."""
        W, B, T, _ = self._sizes
        lengths_TWB = self._lengths_TR[:, : W * B].view(T, W, B)
        if self._sources is None:
            lengths_TWB.copy_(self._incoming.lengths.view(W, T, B).transpose(0, 1))
        else:
            lengths_TWB.copy_(self._sources.find(self._incoming.lengths))
        torch.cumsum(self._lengths_TR.view(-1), 0, dtype=torch.int64, out=self._offsets[1:])
        if self._offsets.is_cuda:
            self._gather()
        else:
            sources_TW = None if self._sources is None else self._sources.places_TW
            gather_lists_twin(self._incoming, self._offsets, self.kjt, self._sizes, self._tail_rows, sources_TW)
        self._update_offsets.copy_(self._offsets)
        self._share_rest(self._update_offsets)

    @contextmanager
    def looked_up(self) -> Iterator[None]:
        """Around a lookup of `kjt`: its backward, the tables' update, reads offsets in which every id belongs to a bag. Raises RuntimeError
        if the lookup does not keep its offsets for its backward."""
        swapped = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal swapped
            if tensor.data_ptr() != self._offsets.data_ptr() or tensor.dtype != self._offsets.dtype:
                return tensor
            swapped += 1
            return self._update_offsets

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
        if not swapped:
            raise RuntimeError(
                "the lookup keeps other offsets for its backward than it was given: FBGEMM is another than 1.6"
            )

    def share_rest(self) -> None:
        """For a lookup that wants a bag for every id itself."""
        self._share_rest(self._offsets)

    def _share_rest(self, offsets: torch.Tensor) -> None:
        S, last, num_ids = self._sizes[3], offsets.numel() - 1, self.kjt.values().numel()
        if offsets.is_cuda:
            share_rest_kernel[(triton.cdiv(S, TILE),)](offsets, last, S, num_ids, TILE=TILE)
        else:
            share_rest_twin(offsets, S, num_ids)

    def _gather(self) -> None:
        W, B, T, S = self._sizes
        ids, weights_N = self._incoming.ids_N, self._incoming.weights_N
        values, weights = self.kjt.values(), self.kjt.weights_or_none()
        skipped = T * W if self._in_place else 0
        gather_lists_kernel[(T * W - skipped + REST_SEGMENTS, PROGRAMS_PER_SEGMENT)](
            ids,
            ids if weights_N is None else weights_N,
            self._offsets,
            self._offsets if self._sources is None else self._sources.places_TW,
            values,
            values if weights is None else weights,
            B,
            W,
            T,
            S,
            ids.numel() // W,
            values.numel(),
            self._tail_rows,
            skipped,
            T_PADDED=triton.next_power_of_2(T),
            SOURCES=self._sources is not None,
            WEIGHTED=weights is not None,
            TILE=TILE,
            num_warps=8,
        )


class _Sources:
    """Where each looked-up feature's ids of each rank lie among what has arrived."""

    def __init__(
        self,
        received: Received,
        features: tuple[str, ...],
        *,
        world_size: int,
        batch_size: int,
        device: torch.device,
    ) -> None:
        W, B, self._num_own = world_size, batch_size, len(received.own)
        num_split = len(received.split)
        self._sizes = W, B, num_split
        self._of_T = torch.tensor(received.places(features), device=device)
        self._lengths_FWB = torch.zeros(self._num_own + num_split, W, B, dtype=torch.int32, device=device)
        ranks = torch.arange(W, device=device)
        bases = [ranks * received.own_room] * self._num_own
        bases += [W * received.own_room + ranks * received.split_room] * num_split
        self._bases_FW = torch.stack(bases)
        self.places_TW = torch.zeros(len(features), W, dtype=torch.int64, device=device)

    def find(self, lengths: torch.Tensor) -> torch.Tensor:
        """Lengths [T, W, B] of the looked-up features, from those that arrived; fills `places_TW`."""
        W, B, num_split = self._sizes
        own = W * self._num_own * B
        self._lengths_FWB[: self._num_own].copy_(lengths[:own].view(W, self._num_own, B).transpose(0, 1))
        self._lengths_FWB[self._num_own :].copy_(lengths[own:].view(W, num_split, B).transpose(0, 1))
        totals_FW = self._lengths_FWB.sum(2, dtype=torch.int64)
        before_FW = totals_FW.cumsum(0) - totals_FW
        before_FW[self._num_own :] -= totals_FW[: self._num_own].sum(0)
        torch.index_select(before_FW + self._bases_FW, 0, self._of_T, out=self.places_TW)
        return self._lengths_FWB.index_select(0, self._of_T)


def share_rest_twin(offsets: torch.Tensor, spare_rows: int, num_ids: int) -> None:
    """The kernel in numpy, which autograd does not see either."""
    rest = offsets.numpy()[-spare_rows - 1 :]
    rest[1:] = rest[0] + (num_ids - rest[0]) * np.arange(1, spare_rows + 1) // spare_rows


def gather_lists_twin(
    incoming: Lists,
    real: torch.Tensor,
    kjt: KeyedJaggedTensor,
    sizes: tuple[int, int, int, int],
    tail_rows: int,
    sources_TW: torch.Tensor | None = None,
) -> None:
    """The kernel in plain PyTorch."""
    W, B, T, S = sizes
    room = incoming.ids_N.numel() // W
    values, weights = kjt.values(), kjt.weights_or_none()
    for w in range(W):
        source = w * room
        for t in range(T):
            begin, end = (int(real[t * (W * B + S) + (w + k) * B]) for k in (0, 1))
            if sources_TW is not None:
                source = int(sources_TW[t, w])
            values[begin:end] = incoming.ids_N[source : source + end - begin]
            if weights is not None and incoming.weights_N is not None:
                weights[begin:end] = incoming.weights_N[source : source + end - begin]
            source += end - begin
    filled = int(real[-S - 1])
    values[filled:] = torch.arange(values.numel() - filled) % tail_rows
    if weights is not None:
        weights[filled:] = 0
