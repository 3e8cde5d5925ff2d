# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The lookup's input from lists that all ranks have sent: feature by feature, with a bag behind the rows for what is no id.

Rank w's block holds its ids feature by feature; the lookup wants each feature's ids of all ranks together. Nothing is read on
the host: the number of ids is the blocks' room, and what they do not fill goes in equal shares to the last bags of the last feature, in
S rows behind all others, spread over that feature's table (in one bag one warp would look up all of it). No gradient reaches these bags,
so tables whose update is nothing without a gradient (SGD, Adagrad, rowwise Adagrad) keep those rows as they are.

W ranks, B rows of a rank, T features of this rank, R = W * B + S bags of a feature, C room of a block, N = W * C.
"""

from __future__ import annotations

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
def gather_lists_kernel(
    ids_ptr,
    weights_ptr,
    offsets_ptr,
    out_ptr,
    out_weights_ptr,
    B,
    W,
    T,
    S,
    C,
    tail_rows,
    T_PADDED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid: (T * W + some, programs a segment). Segment (t, w): rank w's ids of feature t; the last ones: what is no id."""
    segment = tl.program_id(0)
    R = W * B + S
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    step = tl.num_programs(1) * TILE
    if segment >= T * W:
        filled = tl.load(offsets_ptr + T * R - S)
        place = filled + (segment - T * W) * step + lane
        room = tl.cast(W * C, tl.int64)
        step *= tl.num_programs(0) - T * W
        while tl.min(place, 0) < room:
            tl.store(out_ptr + place, (place - filled) % tail_rows, mask=place < room)
            if WEIGHTED:
                tl.store(out_weights_ptr + place, tl.zeros([TILE], tl.float32), mask=place < room)
            place += step
    else:
        t = segment // W
        w = segment % W
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
    ) -> None:
        """`spare_rows`: S; `tail_rows`: of the table of the last feature."""
        self._incoming, self._tail_rows = incoming, tail_rows
        self._sizes = W, B, T, S = world_size, batch_size, len(features), spare_rows
        R, N, device = W * B + S, incoming.ids_N.numel(), incoming.ids_N.device
        self._lengths_TR = torch.zeros(T, R, dtype=torch.int32, device=device)
        self._real = torch.zeros(T * R + 1, dtype=torch.int64, device=device)
        """Offsets without what is no id."""
        self._offsets = torch.zeros(T * R + 1, dtype=torch.int64, device=device)
        self._shares = torch.arange(S + 1, dtype=torch.float64, device=device) / S
        weights_N = None if incoming.weights_N is None else torch.zeros(N, device=device)
        self.kjt = KeyedJaggedTensor(
            keys=list(features),
            values=torch.zeros(N, dtype=torch.int64, device=device),
            weights=weights_N,
            lengths=self._lengths_TR.view(-1),
            offsets=self._offsets,
            stride=R,
            length_per_key=[N] + [0] * (T - 1),  # nobody splits it: all features are one group of tables
            offset_per_key=[0] + [N] * T,
        )

    def fill(self) -> None:
        """From what has arrived."""
        W, B, T, S = self._sizes
        lengths_TWB = self._lengths_TR[:, : W * B].view(T, W, B)
        lengths_TWB.copy_(self._incoming.lengths.view(W, T, B).transpose(0, 1))
        torch.cumsum(self._lengths_TR.view(-1), 0, dtype=torch.int64, out=self._real[1:])
        filled, rest = self._real[-S - 1], self._offsets[-S - 1 :]
        self._offsets[: -S - 1].copy_(self._real[: -S - 1])
        rest.copy_(self._shares * (self.kjt.values().numel() - filled)).add_(filled)
        if self._real.is_cuda:
            self._gather()
        else:
            gather_lists_twin(self._incoming, self._real, self.kjt, self._sizes, self._tail_rows)

    def _gather(self) -> None:
        W, B, T, S = self._sizes
        ids, weights_N = self._incoming.ids_N, self._incoming.weights_N
        values, weights = self.kjt.values(), self.kjt.weights_or_none()
        gather_lists_kernel[(T * W + REST_SEGMENTS, PROGRAMS_PER_SEGMENT)](
            ids,
            ids if weights_N is None else weights_N,
            self._real,
            values,
            values if weights is None else weights,
            B,
            W,
            T,
            S,
            ids.numel() // W,
            self._tail_rows,
            T_PADDED=triton.next_power_of_2(T),
            WEIGHTED=weights is not None,
            TILE=TILE,
            num_warps=8,
        )


def gather_lists_twin(
    incoming: Lists, real: torch.Tensor, kjt: KeyedJaggedTensor, sizes: tuple[int, int, int, int], tail_rows: int
) -> None:
    """The kernel in plain PyTorch."""
    W, B, T, S = sizes
    room = incoming.ids_N.numel() // W
    values, weights = kjt.values(), kjt.weights_or_none()
    for w in range(W):
        source = w * room
        for t in range(T):
            begin, end = (int(real[t * (W * B + S) + (w + k) * B]) for k in (0, 1))
            values[begin:end] = incoming.ids_N[source : source + end - begin]
            if weights is not None and incoming.weights_N is not None:
                weights[begin:end] = incoming.weights_N[source : source + end - begin]
            source += end - begin
    filled = int(real[-S - 1])
    values[filled:] = torch.arange(values.numel() - filled) % tail_rows
    if weights is not None:
        weights[filled:] = 0
