# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Looks single ids up straight into the buffers that are read: own rows here, peers' rows in theirs, over NVLink.

A lookup and an exchange behind it take the sum of their times; rows stored where they belong take the longer one. TorchRec keeps the
tables and their fused update: its lookup is called as ever, for autograd's sake, but launches no kernel. Not here: lists of
ids, tables that are split by columns, and exchanges whose peers' memory is out of reach.

B rows, W ranks, T features that a rank looks up, D dim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.exchange import Exchange

log = logging.getLogger(__name__)

ALONE, BETWEEN = (32, 4, 4), (64, 8, 1)
"""(rows of a tile, warps, programs a multiprocessor) on one rank and on several: one wants many loads under way, between ranks the wire is the
limit, 83 us of 27 MB whatever the grid, and room for other kernels counts (plan 0 at 4096: 0.650 ms a step, as on one rank 0.653;
there 0.589, and 0.597 as between ranks; H200s, 2026-11-30)."""
FORWARD = "codegen_forward"
"""Part of the names of FBGEMM's lookups (1.6), below autograd."""


@triton.jit
def rows_kernel(
    ids_ptr,
    tables_ptr,
    places_ptr,
    begin,
    end,
    B,
    T,
    W,
    rank,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    TURNS: tl.constexpr,
):
    """Rows [begin, end) of each rank; programs stride over tiles of ROWS ids of one feature, peers' and own ones by turns."""
    d = tl.arange(0, D)
    for turn in tl.range(0, TURNS, num_stages=1):
        tile = tl.program_id(0) + turn * tl.num_programs(0)
        w = (rank + 1 + tile % W) % W
        t = (tile // W) % T
        b = begin + (tile // W // T) * ROWS + tl.arange(0, ROWS)
        here = b < end
        ids = tl.load(ids_ptr + (t * W + w) * B + b, mask=here, other=0)
        table = tl.load(tables_ptr + t).to(tl.pointer_type(tl.float32))
        place = tl.load(places_ptr + w).to(tl.pointer_type(tl.float32))
        source = tl.multiple_of(table + ids * D, 16)
        target = tl.multiple_of(place + (b * T + t) * D, 16)
        rows = tl.load(source[:, None] + d[None, :], mask=here[:, None], other=0.0)
        tl.store(target[:, None] + d[None, :], rows, mask=here[:, None])


class RowLookup:
    """Of one rank's tables, for one exchange."""

    def __init__(self, tables: Sequence[torch.Tensor], blocks: Blocks, places: Sequence[torch.Tensor]) -> None:
        """`tables`: the table [rows, D] of each feature looked up; `places`: where each rank's rows [B * T * D] belong, own ones here."""
        self._tables, self._places, self._blocks = tuple(tables), tuple(places), blocks
        self.own = places[blocks.rank]
        """[B * T * D]: this rank's rows."""
        device = self.own.device
        self._addresses = [
            torch.tensor([each.data_ptr() for each in tensors], dtype=torch.int64, device=device)
            for tensors in (tables, places)
        ]
        self._left_out = _LeftOut((blocks.world_size * blocks.batch_size, blocks.own_width), device)

    def for_autograd(self, lookup: Callable[[object], torch.Tensor], features: object) -> torch.Tensor:
        """TorchRec's lookup as autograd sees it: a tensor of its shape that holds nothing."""
        with self._left_out:
            return lookup(features)

    def put(self, ids_N: torch.Tensor, rows: slice) -> None:
        """Enqueues the lookup of some of each rank's rows. `ids_N`: [T * W * B] int64. Peers see theirs after a barrier."""
        if not self._tables:
            return
        if ids_N.is_cuda:
            self.put_kernel(ids_N, rows)
        else:
            self.put_twin(ids_N, rows)

    def put_kernel(self, ids_N: torch.Tensor, rows: slice, programs: int | None = None) -> None:
        """By the kernel, also under Triton's interpreter."""
        blocks, T = self._blocks, len(self._tables)
        tile_rows, warps, each = ALONE if blocks.world_size == 1 else BETWEEN
        if programs is None:
            programs = each * torch.cuda.get_device_properties(ids_N.device).multi_processor_count
        tiles = triton.cdiv(rows.stop - rows.start, tile_rows) * T * blocks.world_size
        turns = triton.cdiv(tiles, programs)
        sizes = (rows.start, rows.stop, blocks.batch_size, T, blocks.world_size, blocks.rank)
        same = {"D": blocks.dim, "ROWS": tile_rows, "TURNS": turns, "num_warps": warps}
        rows_kernel[(triton.cdiv(tiles, turns),)](ids_N, *self._addresses, *sizes, **same)

    def put_twin(self, ids_N: torch.Tensor, rows: slice) -> None:
        """The kernel in plain PyTorch."""
        blocks, T = self._blocks, len(self._tables)
        ids_TWB = ids_N.view(T, blocks.world_size, blocks.batch_size)
        for w, place in enumerate(self._places):
            place_BTD = place.view(blocks.batch_size, T, blocks.dim)
            for t, table in enumerate(self._tables):
                place_BTD[rows, t] = table.detach()[ids_TWB[t, w, rows]]


class _LeftOut(TorchDispatchMode):
    """Within it FBGEMM's lookup gives what nobody reads, without a kernel."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        super().__init__()
        self._unread = torch.zeros(1, device=device).expand(shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if FORWARD in str(func):
            return self._unread.view_as(self._unread)
        return func(*args, **(kwargs or {}))


def row_lookup(modules: Sequence[Any], blocks: Blocks, exchange: Exchange, device: torch.device) -> RowLookup | None:
    """For FBGEMM's modules of a rank; None: they or the exchange do not allow it."""
    tables = [table for module in modules for table in _tables(module)]
    wanted = (blocks.dim, torch.float32, device)
    if len(modules) > 1 or blocks.num_split or any((t.shape[1], t.dtype, t.device) != wanted for t in tables):
        return None
    places = exchange.places(torch.zeros(blocks.batch_size * blocks.own_width, device=device))
    return None if places is None else RowLookup(tables, blocks, places)


def _tables(module: Any) -> list[torch.Tensor]:
    """The table of each feature."""
    tables = module.split_embedding_weights()
    return [tables[table] for table in module.feature_table_map]
