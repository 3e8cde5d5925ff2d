# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Dot interaction without a gather: forward and backward kernels over exchanged blocks.

A program handles one sample at a time: it loads the tile [F, D] (F padded to a power of two with zeros,
so that the products run on tensor cores) straight from the bottom MLP's output, the own lookup
output and the peers' blocks, and writes the model's columns in place. Twins in plain PyTorch
compute the same from the same buffers; they are the reference and the CPU path.

A feature of at most one id a row may be absent in a row: its embedding counts as zero and its gradient is zero.

B rows, D dim, F features, S = F - 1 sparse ones in rank-major order, K = D + F(F-1)/2 columns of the top MLP's input,
K1 = K padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from rap_trainer.captured.blocks import Blocks, Origin, num_pairs, pad_to

COLUMN_PAD = 32
"""K is padded to a multiple of this many columns: tf32 matrix products want rows of 16-byte multiples."""

PROGRAMS_PER_SM = 4
TUNING = {16: (2, 3), 32: (2, 3), 64: (4, 2), 128: (8, 1), 256: (8, 1)}
"""(warps, stages of the software pipeline over samples) by rows of the tile. One H200, 2026-11-29, batch 4096: 28
features 24.9 us forward and 40.3 us backward (35 and 72 without the pipeline), 105 features 450 and 470 us, where two
stages do not fit shared memory."""


@dataclass(frozen=True, kw_only=True)
class TileMap:
    """`Blocks.tile()` as device tensors, padded to T rows with absent features."""

    position_T: torch.Tensor
    origin_T: torch.Tensor
    offset_T: torch.Tensor
    stride_T: torch.Tensor
    num_features: int
    dim: int

    @classmethod
    def of(cls, blocks: Blocks, device: torch.device) -> TileMap:
        rows = blocks.tile()
        if max(row.offset + blocks.batch_size * row.stride for row in rows) >= 2**31:
            raise ValueError(f"batch size {blocks.batch_size} makes exchange buffers of more than 2^31 elements")
        pad = max(16, triton.next_power_of_2(len(rows))) - len(rows)
        absent = 3

        def column(values: list[int], fill: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values + [fill] * pad, dtype=dtype, device=device)

        return cls(
            position_T=column([row.position for row in rows], len(rows), torch.int32),
            origin_T=column([int(row.origin) for row in rows], absent, torch.int32),
            offset_T=column([row.offset for row in rows], 0, torch.int32),
            stride_T=column([row.stride for row in rows], 0, torch.int32),
            num_features=len(rows),
            dim=blocks.dim,
        )

    @property
    def tile_rows(self) -> int:
        return self.position_T.numel()

    @property
    def num_columns(self) -> int:
        """K."""
        return self.dim + num_pairs(self.num_features)

    @property
    def padded_columns(self) -> int:
        """K1."""
        return pad_to(self.num_columns, COLUMN_PAD)


@triton.jit
def _row_pointers(bottom_ptr, own_ptr, peer_ptr, origin, start):
    """Pointer to each row of the tile; every row starts at a multiple of 16 bytes."""
    rest = tl.where(origin == 1, own_ptr + start, peer_ptr + start)
    return tl.multiple_of(tl.where(origin == 0, bottom_ptr + start, rest), 16)


@triton.jit
def _load_present(present_ptr, b, B, F, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Which rows of the tile the sample has, [TILE]; none past the last sample."""
    k = tl.arange(0, TILE)
    present = (k < F) & (b < B)
    if MASKED:
        held = tl.load(present_ptr + b * (F - 1) + k - 1, mask=(k > 0) & present, other=1)
        present = present & (held != 0)
    return present


@triton.jit
def _pair_columns(position, F, D: tl.constexpr, TILE: tl.constexpr):
    i = tl.broadcast_to(position[:, None], (TILE, TILE))
    j = tl.broadcast_to(position[None, :], (TILE, TILE))
    low = tl.minimum(i, j)
    high = tl.maximum(i, j)
    column = D + low * (2 * F - low - 1) // 2 + (high - low - 1)
    return column, (i != j) & (high < F), i < j


@triton.jit
def interaction_forward_kernel(
    bottom_ptr,
    own_ptr,
    peer_ptr,
    present_ptr,
    out_ptr,
    position_ptr,
    origin_ptr,
    offset_ptr,
    stride_ptr,
    B,
    F,
    out_stride,
    TILE: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Row b of out_BK1: the bottom MLP's output, then the products of all pairs. Programs stride over the rows."""
    k = tl.arange(0, TILE)
    d = tl.arange(0, D)
    position = tl.load(position_ptr + k)
    origin = tl.load(origin_ptr + k)
    offset = tl.load(offset_ptr + k)
    stride = tl.load(stride_ptr + k)
    column, valid, upper = _pair_columns(position, F, D, TILE)
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        b = tl.program_id(0) + turn * tl.num_programs(0)
        present = _load_present(present_ptr, b, B, F, TILE, MASKED)
        row = _row_pointers(bottom_ptr, own_ptr, peer_ptr, origin, offset + stride * b)
        tile = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
        products = tl.dot(tile, tl.trans(tile), input_precision=PRECISION)
        to = out_ptr + b * out_stride
        tl.store(to + column, products, mask=valid & upper & (b < B))
        here = (d < D) & (b < B)
        tl.store(to + d, tl.load(bottom_ptr + b * D + d, mask=here, other=0.0), mask=here)


@triton.jit
def interaction_backward_kernel(
    bottom_ptr,
    own_ptr,
    peer_ptr,
    present_ptr,
    grad_ptr,
    grad_bottom_ptr,
    grad_own_ptr,
    grad_peer_ptr,
    position_ptr,
    origin_ptr,
    offset_ptr,
    stride_ptr,
    B,
    F,
    grad_stride,
    TILE: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients of the tile through the pairs, from grad_BK1, in the very layout the exchange sends.

    The bottom MLP's row lacks its direct gradient and the mask of its ReLU (`pointwise.bottom_gradient`).
    """
    k = tl.arange(0, TILE)
    d = tl.arange(0, D)
    position = tl.load(position_ptr + k)
    origin = tl.load(origin_ptr + k)
    offset = tl.load(offset_ptr + k)
    stride = tl.load(stride_ptr + k)
    column, valid, _ = _pair_columns(position, F, D, TILE)
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        b = tl.program_id(0) + turn * tl.num_programs(0)
        present = _load_present(present_ptr, b, B, F, TILE, MASKED)
        start = offset + stride * b
        row = _row_pointers(bottom_ptr, own_ptr, peer_ptr, origin, start)
        tile = tl.load(row[:, None] + d[None, :], mask=present[:, None], other=0.0)
        pairs = tl.load(grad_ptr + b * grad_stride + column, mask=valid & present[:, None], other=0.0)
        grad = tl.dot(pairs, tile, input_precision=PRECISION)
        to = _row_pointers(grad_bottom_ptr, grad_own_ptr, grad_peer_ptr, origin, start)
        tl.store(to[:, None] + d[None, :], grad, mask=((k < F) & (b < B))[:, None])


def interaction_forward(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    out_BK1: torch.Tensor,
    tile: TileMap,
    *,
    present_BS: torch.Tensor | None = None,
    precision: str = "tf32",
) -> None:
    """Fills columns 0..K-1 of `out_BK1`; the padding is left as it is (zero). `present_BS`: int8, None: all."""
    if not _on_kernel(bottom_BD):
        forward_twin(bottom_BD, own, peer, out_BK1, tile, present_BS=present_BS)
        return
    programs, turns = _grid(out_BK1)
    interaction_forward_kernel[(programs,)](
        bottom_BD,
        own,
        peer,
        bottom_BD if present_BS is None else present_BS,
        out_BK1,
        tile.position_T,
        tile.origin_T,
        tile.offset_T,
        tile.stride_T,
        out_BK1.shape[0],
        tile.num_features,
        out_BK1.stride(0),
        TILE=tile.tile_rows,
        D=tile.dim,
        PRECISION=precision,
        MASKED=present_BS is not None,
        TURNS=turns,
        STAGES=TUNING[tile.tile_rows][1],
        num_warps=TUNING[tile.tile_rows][0],
    )


@dataclass(frozen=True, kw_only=True)
class TileGradients:
    """Where the interaction's backward writes: same layouts as the buffers it reads."""

    bottom_BD: torch.Tensor
    own: torch.Tensor
    peer: torch.Tensor


def interaction_backward(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    grad_BK1: torch.Tensor,
    tile: TileMap,
    *,
    into: TileGradients,
    present_BS: torch.Tensor | None = None,
    precision: str = "tf32",
) -> None:
    """Fills `into` from the gradient of the interaction's output, the bottom row without its direct gradient."""
    if not _on_kernel(bottom_BD):
        backward_twin(bottom_BD, own, peer, grad_BK1, tile, into=into, present_BS=present_BS)
        return
    programs, turns = _grid(grad_BK1)
    interaction_backward_kernel[(programs,)](
        bottom_BD,
        own,
        peer,
        bottom_BD if present_BS is None else present_BS,
        grad_BK1,
        into.bottom_BD,
        into.own,
        into.peer,
        tile.position_T,
        tile.origin_T,
        tile.offset_T,
        tile.stride_T,
        grad_BK1.shape[0],
        tile.num_features,
        grad_BK1.stride(0),
        TILE=tile.tile_rows,
        D=tile.dim,
        PRECISION=precision,
        MASKED=present_BS is not None,
        TURNS=turns,
        STAGES=TUNING[tile.tile_rows][1],
        num_warps=TUNING[tile.tile_rows][0],
    )


def forward_twin(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    out_BK1: torch.Tensor,
    tile: TileMap,
    *,
    present_BS: torch.Tensor | None = None,
) -> None:
    """The forward kernel in plain PyTorch."""
    features_BFD = _gather(bottom_BD, own, peer, tile) * _present(present_BS, bottom_BD, tile)
    products = features_BFD @ features_BFD.transpose(1, 2)
    upper = torch.triu_indices(tile.num_features, tile.num_features, 1, device=bottom_BD.device)
    out_BK1[:, : tile.dim] = bottom_BD
    out_BK1[:, tile.dim : tile.num_columns] = products[:, upper[0], upper[1]]


def backward_twin(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    grad_BK1: torch.Tensor,
    tile: TileMap,
    *,
    into: TileGradients,
    present_BS: torch.Tensor | None = None,
) -> None:
    """The backward kernel in plain PyTorch."""
    present_BF1 = _present(present_BS, bottom_BD, tile)
    features_BFD = _gather(bottom_BD, own, peer, tile) * present_BF1
    rows, size = grad_BK1.shape[0], tile.num_features
    upper = torch.triu_indices(size, size, 1, device=grad_BK1.device)
    pairs_BFF = grad_BK1.new_zeros(rows, size, size)
    pairs_BFF[:, upper[0], upper[1]] = grad_BK1[:, tile.dim : tile.num_columns]
    grad_BFD = (pairs_BFF + pairs_BFF.transpose(1, 2)) @ features_BFD * present_BF1
    into.bottom_BD.copy_(grad_BFD[:, 0])
    for origin, target in ((Origin.OWN, into.own), (Origin.PEER, into.peer)):
        for k in (tile.origin_T == int(origin)).nonzero().flatten().tolist():
            _row(target, tile, k, rows).copy_(grad_BFD[:, int(tile.position_T[k])])


def _gather(bottom_BD: torch.Tensor, own: torch.Tensor, peer: torch.Tensor, tile: TileMap) -> torch.Tensor:
    rows = bottom_BD.shape[0]
    buffers = {Origin.BOTTOM: bottom_BD, Origin.OWN: own, Origin.PEER: peer}
    placed = {
        int(tile.position_T[k]): _row(buffers[Origin(int(tile.origin_T[k]))], tile, k, rows)
        for k in range(tile.num_features)
    }
    return torch.stack([placed[p] for p in range(tile.num_features)], 1)


def _present(present_BS: torch.Tensor | None, like: torch.Tensor, tile: TileMap) -> torch.Tensor:
    """[B, F, 1] of ones and zeros, features by their position in the model."""
    present_BF = like.new_ones(like.shape[0], tile.num_features)
    if present_BS is not None:
        present_BF[:, tile.position_T[1 : tile.num_features].long()] = present_BS.to(like.dtype)
    return present_BF.unsqueeze(2)


def _row(buffer: torch.Tensor, tile: TileMap, k: int, rows: int) -> torch.Tensor:
    at = buffer.storage_offset() + int(tile.offset_T[k])
    return buffer.as_strided((rows, tile.dim), (int(tile.stride_T[k]), 1), at)


def _on_kernel(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.float32


def _grid(rows: torch.Tensor) -> tuple[int, int]:
    """Programs, and samples of each."""
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    turns = triton.cdiv(rows.shape[0], PROGRAMS_PER_SM * processors)
    return triton.cdiv(rows.shape[0], turns), turns
