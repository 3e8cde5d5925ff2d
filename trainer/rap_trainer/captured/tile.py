"""The interaction's features of a sample, where they lie, and its reference in plain PyTorch.

Rows of the tile are the bottom MLP's output and the sparse features: of few features in the order in which they lie in memory, of many in
the model's order, so that a row of the upper triangle is one stretch of the top MLP's input. A feature of at most one id a row may be absent in a row: its embedding counts
as zero and its gradient is zero.

B rows, D dim, F features, S = F - 1 sparse ones in rank-major order, T rows of a map, K = D + F(F-1)/2 columns of the top
MLP's input, K1 = K padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rap_trainer.captured.blocks import Blocks, Origin, num_pairs, pad_to

COLUMN_PAD = 32
"""K is padded to a multiple of this many columns: tf32 matrix products want rows of 16-byte multiples."""
ROW_PAD = 128
"""T is padded to a multiple of the largest block of rows a kernel loads."""
FEW = 32
"""Features up to which rows keep the order of the memory. In the model's order the backward of 28 took 67 us instead of 52 (H200,
plan 0, 2026-11-30)."""
ABSENT = 3
"""Origin of a row that is only padding."""


@dataclass(frozen=True, kw_only=True)
class TileMap:
    """`Blocks.tile()` as device tensors, padded to T rows with absent features."""

    origin_T: torch.Tensor
    offset_T: torch.Tensor
    stride_T: torch.Tensor
    position_T: torch.Tensor
    """Place in the model."""
    place_T: torch.Tensor
    """Column of `present_BS`; -1 for the bottom MLP's output, which is always there."""
    num_features: int
    dim: int

    @classmethod
    def of(cls, blocks: Blocks, device: torch.device, *, by_position: bool | None = None) -> TileMap:
        """`by_position`: rows in the model's order; None: if there are many."""
        rows = blocks.tile()
        if max(row.offset + blocks.batch_size * row.stride for row in rows) >= 2**31:
            raise ValueError(f"batch size {blocks.batch_size} makes exchange buffers of more than 2^31 elements")
        placed = list(enumerate(rows, -1))
        if by_position if by_position is not None else len(rows) > FEW:
            placed.sort(key=lambda entry: entry[1].position)
        pad = pad_to(len(rows), ROW_PAD) - len(rows)

        def column(values: list[int], fill: int) -> torch.Tensor:
            return torch.tensor(values + [fill] * pad, dtype=torch.int32, device=device)

        return cls(
            origin_T=column([int(row.origin) for _, row in placed], ABSENT),
            offset_T=column([row.offset for _, row in placed], 0),
            stride_T=column([row.stride for _, row in placed], 0),
            position_T=column([row.position for _, row in placed], len(rows)),
            place_T=column([place for place, _ in placed], -1),
            num_features=len(rows),
            dim=blocks.dim,
        )

    @property
    def num_columns(self) -> int:
        """K."""
        return self.dim + num_pairs(self.num_features)

    @property
    def padded_columns(self) -> int:
        """K1."""
        return pad_to(self.num_columns, COLUMN_PAD)


@dataclass(frozen=True, kw_only=True)
class TileGradients:
    """Where the interaction's backward writes: same layouts as the buffers it reads."""

    bottom_BD: torch.Tensor
    own: torch.Tensor
    peer: torch.Tensor


def forward_twin(
    bottom_BD: torch.Tensor,
    own: torch.Tensor,
    peer: torch.Tensor,
    out_BK1: torch.Tensor,
    tile: TileMap,
    *,
    present_BS: torch.Tensor | None = None,
    rows: slice = slice(None),
) -> None:
    """The forward kernels in plain PyTorch."""
    features_BFD = (_gather(bottom_BD, own, peer, tile) * _present(present_BS, bottom_BD, tile))[rows]
    products = features_BFD @ features_BFD.transpose(1, 2)
    upper = torch.triu_indices(tile.num_features, tile.num_features, 1, device=bottom_BD.device)
    out_BK1[rows, : tile.dim] = bottom_BD[rows]
    out_BK1[rows, tile.dim : tile.num_columns] = products[:, upper[0], upper[1]]


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
    """The backward kernels in plain PyTorch."""
    present_BF1 = _present(present_BS, bottom_BD, tile)
    features_BFD = _gather(bottom_BD, own, peer, tile) * present_BF1
    rows, size = grad_BK1.shape[0], tile.num_features
    upper = torch.triu_indices(size, size, 1, device=grad_BK1.device)
    pairs_BFF = grad_BK1.new_zeros(rows, size, size)
    pairs_BFF[:, upper[0], upper[1]] = grad_BK1[:, tile.dim : tile.num_columns]
    grad_BFD = (pairs_BFF + pairs_BFF.transpose(1, 2)) @ features_BFD * present_BF1
    targets = {Origin.BOTTOM: into.bottom_BD, Origin.OWN: into.own, Origin.PEER: into.peer}
    for k in range(size):
        target = _row(targets[Origin(int(tile.origin_T[k]))], tile, k, rows)
        target.copy_(grad_BFD[:, int(tile.position_T[k])])


def _gather(bottom_BD: torch.Tensor, own: torch.Tensor, peer: torch.Tensor, tile: TileMap) -> torch.Tensor:
    rows = bottom_BD.shape[0]
    buffers = {Origin.BOTTOM: bottom_BD, Origin.OWN: own, Origin.PEER: peer}
    placed = {
        int(tile.position_T[k]): _row(buffers[Origin(int(tile.origin_T[k]))], tile, k, rows)
        for k in range(tile.num_features)
    }
    return torch.stack([placed[position] for position in range(tile.num_features)], 1)


def _present(present_BS: torch.Tensor | None, like: torch.Tensor, tile: TileMap) -> torch.Tensor:
    """[B, F, 1] of ones and zeros."""
    present_BF = like.new_ones(like.shape[0], tile.num_features)
    if present_BS is not None:
        sparse = slice(1, tile.num_features)
        present_BF[:, tile.position_T[sparse].long()] = present_BS[:, tile.place_T[sparse].long()].to(like.dtype)
    return present_BF.unsqueeze(2)


def _row(buffer: torch.Tensor, tile: TileMap, k: int, rows: int) -> torch.Tensor:
    at = buffer.storage_offset() + int(tile.offset_T[k])
    return buffer.as_strided((rows, tile.dim), (int(tile.stride_T[k]), 1), at)
