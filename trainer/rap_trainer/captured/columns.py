# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Puts the columns of a split table's embeddings side by side, and their gradients back to where each owner's are sent from.

The interaction reads an embedding as one stretch. Parts of one come in their owners' blocks, so they are copied once into the block
beside the peers'; whole embeddings are read where they are. One launch each way.

B rows, P parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rap_trainer.captured.blocks import Blocks

PARTS_PER_PROGRAM = 16


@triton.jit
def columns_kernel(
    own_ptr,
    peer_ptr,
    is_own_P,
    offset_P,
    stride_P,
    width_P,
    place_P,
    first,
    P,
    row_stride,
    COLLECT: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One row and PARTS parts a program. Grid: (rows, P / PARTS)."""
    row = tl.program_id(0).to(tl.int64) + first
    part = tl.program_id(1) * PARTS + tl.arange(0, PARTS)
    there = part < P
    width = tl.load(width_P + part, mask=there, other=0)
    is_own = tl.load(is_own_P + part, mask=there, other=0) != 0
    apart = tl.load(offset_P + part, mask=there, other=0) + row * tl.load(stride_P + part, mask=there, other=0)
    together = tl.load(place_P + part, mask=there, other=0) + row * row_stride
    column = tl.arange(0, WIDTH)[None, :]
    mask = column < width[:, None]
    own, peer = mask & is_own[:, None], mask & ~is_own[:, None]
    apart, together = apart[:, None] + column, together[:, None] + column
    if COLLECT:
        values = tl.load(own_ptr + apart, mask=own, other=0.0) + tl.load(peer_ptr + apart, mask=peer, other=0.0)
        tl.store(peer_ptr + together, values, mask=mask)
    else:
        values = tl.load(peer_ptr + together, mask=mask, other=0.0)
        tl.store(own_ptr + apart, values, mask=own)
        tl.store(peer_ptr + apart, values, mask=peer)


class SplitColumns:
    """The parts of one rank's blocks. Buffers as in `exchange`: `own` is this rank's block, `peer` all others and the block beside them."""

    def __init__(self, blocks: Blocks, device: torch.device) -> None:
        self._parts, self._blocks, self._device = blocks.split_parts, blocks, device
        widths, G = blocks.widths, blocks.block_elements
        self._apart = [
            (part.start + (0 if part.owner == blocks.rank else part.owner * G), widths[part.owner])
            for part in self._parts
        ]
        self._together = [
            blocks.beside_start + (part.feature - blocks.num_whole) * blocks.dim + part.column for part in self._parts
        ]

        def column(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self._tables = (
            column([int(part.owner == blocks.rank) for part in self._parts]),
            column([offset for offset, _ in self._apart]),
            column([stride for _, stride in self._apart]),
            column([part.width for part in self._parts]),
            column(self._together),
        )
        self._width = triton.next_power_of_2(max(part.width for part in self._parts))

    def collect(self, own: torch.Tensor, peer: torch.Tensor, rows: slice) -> None:
        """Parts of these rows side by side."""
        self._move(own, peer, rows, collect=True)

    def spread(self, own: torch.Tensor, peer: torch.Tensor) -> None:
        """The same of all rows, back."""
        self._move(own, peer, slice(0, self._blocks.batch_size), collect=False)

    def _move(self, own: torch.Tensor, peer: torch.Tensor, rows: slice, *, collect: bool) -> None:
        if not peer.is_cuda:
            self.move_twin(own, peer, rows, collect=collect)
        else:
            self.move_kernel(own, peer, rows, collect=collect)

    def move_kernel(self, own: torch.Tensor, peer: torch.Tensor, rows: slice, *, collect: bool) -> None:
        """By the kernel, also under Triton's interpreter."""
        count, stride = len(self._parts), self._blocks.num_beside * self._blocks.dim
        columns_kernel[(rows.stop - rows.start, triton.cdiv(count, PARTS_PER_PROGRAM))](
            own,
            peer,
            *self._tables,
            rows.start,
            count,
            stride,
            COLLECT=collect,
            WIDTH=self._width,
            PARTS=PARTS_PER_PROGRAM,
            num_warps=4,
        )

    def move_twin(self, own: torch.Tensor, peer: torch.Tensor, rows: slice, *, collect: bool) -> None:
        """The kernel in plain PyTorch."""
        row_stride = self._blocks.num_beside * self._blocks.dim
        for part, (offset, stride), place in zip(self._parts, self._apart, self._together, strict=True):
            buffer = own if part.owner == self._blocks.rank else peer
            apart = _rows(buffer, offset, stride, part.width, rows)
            together = _rows(peer, place, row_stride, part.width, rows)
            if collect:
                together.copy_(apart)
            else:
                apart.copy_(together)


def _rows(buffer: torch.Tensor, offset: int, stride: int, width: int, rows: slice) -> torch.Tensor:
    start = buffer.storage_offset() + offset + rows.start * stride
    return buffer.as_strided((rows.stop - rows.start, width), (stride, 1), start)
