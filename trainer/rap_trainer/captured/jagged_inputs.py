# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The lookup's input from lists that all ranks have sent: feature by feature, with a bag behind the rows for what is no id.

Rank w's block holds its ids feature by feature; the lookup wants each feature's ids of all ranks together. A step is captured for so many
ids: the blocks' room, or what batches are known to hold (`fitted`), which the host asks of a batch before it trains on it (`num_filled`). The
lookup goes by the bags and sees nothing of what they do not fill; the tables' update, which sorts all ids there are, must find a bag for each,
so before it the rest is given ids, and in the offsets that it reads goes in equal shares to the last bags of the last feature, in S rows
behind all others, spread over that feature's table (in one bag one warp would work on all of it). No gradient reaches these bags, so tables
whose update is nothing without a gradient (SGD, Adagrad, rowwise Adagrad) keep those rows as they are. The real ids and their offsets are
there before the step, so all are sorted beside the lookup.

Where tables are split by columns, a rank is sent two blocks by each, its own features' and those of all split tables, of which it looks
up some, some several times (`Received`).

W ranks, B rows of a rank, T looked-up features of this rank, R = W * B + S bags of a feature, C room of a block, N ids of the lookup,
F received features.
"""

from __future__ import annotations

import copy
import time
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
UNTOLD, UNTOLD_S = -1, 600.0
"""What stands for a number of ids that has not come, and how long it may take."""
PROGRAMS_PER_SEGMENT = 4
REST_PROGRAMS = 256
"""Programs that share what is no id."""


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
    S,
    C,
    T_PADDED: tl.constexpr,
    SOURCES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid: (T * W, programs a segment). Segment (t, w): rank w's ids of feature t.

    Without SOURCES a block's features are those looked up, so a feature's place follows from the lengths of those before.
    """
    segment = tl.program_id(0)
    R = W * B + S
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
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    while tl.min(at, 0) < num:
        tl.store(out_ptr + begin + at, tl.load(ids_ptr + source + at, mask=at < num, other=0), mask=at < num)
        if WEIGHTED:
            weight = tl.load(weights_ptr + source + at, mask=at < num, other=0.0)
            tl.store(out_weights_ptr + begin + at, weight, mask=at < num)
        at += tl.num_programs(1) * TILE


@triton.jit
def fill_rest_kernel(filled_ptr, ids_ptr, weights_ptr, N, tail_rows, WEIGHTED: tl.constexpr, TILE: tl.constexpr):
    """Ids of weight 0 behind the filled ones, over the rows of a table."""
    filled = tl.load(filled_ptr)
    place = filled + tl.program_id(0) * TILE + tl.arange(0, TILE)
    room = tl.cast(N, tl.int64)
    while tl.min(place, 0) < room:
        tl.store(ids_ptr + place, (place - filled) % tail_rows, mask=place < room)
        if WEIGHTED:
            tl.store(weights_ptr + place, tl.zeros([TILE], tl.float32), mask=place < room)
        place += tl.num_programs(0) * TILE


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
        self._filled = self._offsets[T * R - S : T * R - S + 1]
        self._count = torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self._counted = torch.cuda.Event(external=True) if device.type == "cuda" else None
        if self._counted is not None:
            self._counted.record()  # torch makes it then, and a capture must not
        self._features = features
        self.kjt = self._over(values_N, weights_N)
        """Of so many ids as a step is captured for."""

    def _over(self, values_N: torch.Tensor, weights_N: torch.Tensor | None) -> KeyedJaggedTensor:
        (T, R), N = self._lengths_TR.shape, values_N.numel()
        return KeyedJaggedTensor(
            keys=list(self._features),
            values=values_N,
            weights=weights_N,
            lengths=self._lengths_TR.view(-1),
            offsets=self._offsets,
            stride=R,
            length_per_key=[N] + [0] * (T - 1),  # nobody splits it: all features are one group of tables
            offset_per_key=[0] + [N] * T,
        )

    def fitted(self, num_ids: int) -> JaggedInputs:
        """The same lists, for a step that is captured for so many ids: it must not train on a batch of more (`num_filled`)."""
        twin, weights_N = copy.copy(self), self.kjt.weights_or_none()
        twin.kjt = self._over(self.kjt.values()[:num_ids], None if weights_N is None else weights_N[:num_ids])
        return twin

    def expect(self) -> None:
        """Before a fill is enqueued whose number of ids somebody will wait for. The fill before has been waited for."""
        self._count.fill_(UNTOLD)

    @property
    def last_filled(self) -> int:
        """Ids of a batch that was filled in before, perhaps not the latest; 0 of none."""
        return max(0, int(self._count))

    def num_filled(self) -> int:
        """Ids of the batch that was filled in last; waits for it after `expect`. Raises RuntimeError if nothing comes.

        The event lets the host sleep, the number itself proves that it is the new one: a graph that has not begun to run has not recorded its
        event yet, which then stands for the fill before.
        """
        if self._counted is not None:
            self._counted.synchronize()
        until = time.monotonic() + UNTOLD_S
        while int(self._count) == UNTOLD:
            if time.monotonic() > until:
                raise RuntimeError(f"the device has not told for {UNTOLD_S:.0f} s how many ids a batch holds")
            time.sleep(1e-5)
        return int(self._count)

    def fill(self) -> None:
        """From what has arrived, for the lookup."""
        W, B, T, _ = self._sizes
        lengths_TWB = self._lengths_TR[:, : W * B].view(T, W, B)
        if self._sources is None:
            lengths_TWB.copy_(self._incoming.lengths.view(W, T, B).transpose(0, 1))
        else:
            lengths_TWB.copy_(self._sources.find(self._incoming.lengths))
        torch.cumsum(self._lengths_TR.view(-1), 0, dtype=torch.int64, out=self._offsets[1:])
        self._count.copy_(self._filled, non_blocking=True)
        if self._counted is not None:
            self._counted.record()
        if not self._in_place:
            self._gather()
        self._update_offsets.copy_(self._offsets)

    def fill_rest(self) -> None:
        """For the tables' update: ids and bags for the places behind the filled ones."""
        self._fill_rest_ids()
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
        """The same for a lookup that wants a bag for every id itself."""
        self._fill_rest_ids()
        self._share_rest(self._offsets)

    def _fill_rest_ids(self) -> None:
        values_N, weights_N = self.kjt.values(), self.kjt.weights_or_none()
        if not values_N.is_cuda:
            fill_rest_twin(int(self._filled), values_N, weights_N, self._tail_rows)
            return
        fill_rest_kernel[(REST_PROGRAMS,)](
            self._filled,
            values_N,
            values_N if weights_N is None else weights_N,
            values_N.numel(),
            self._tail_rows,
            WEIGHTED=weights_N is not None,
            TILE=TILE,
            num_warps=8,
        )

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
        sources_TW = None if self._sources is None else self._sources.places_TW
        if not values.is_cuda:
            gather_lists_twin(self._incoming, self._offsets, self.kjt, self._sizes, sources_TW)
            return
        gather_lists_kernel[(T * W, PROGRAMS_PER_SEGMENT)](
            ids,
            ids if weights_N is None else weights_N,
            self._offsets,
            self._offsets if sources_TW is None else sources_TW,
            values,
            values if weights is None else weights,
            B,
            W,
            S,
            ids.numel() // W,
            T_PADDED=triton.next_power_of_2(T),
            SOURCES=sources_TW is not None,
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


def fill_rest_twin(filled: int, ids_N: torch.Tensor, weights_N: torch.Tensor | None, tail_rows: int) -> None:
    """The kernel in plain PyTorch."""
    ids_N[filled:] = torch.arange(ids_N.numel() - filled) % tail_rows
    if weights_N is not None:
        weights_N[filled:] = 0


def gather_lists_twin(
    incoming: Lists,
    real: torch.Tensor,
    kjt: KeyedJaggedTensor,
    sizes: tuple[int, int, int, int],
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
