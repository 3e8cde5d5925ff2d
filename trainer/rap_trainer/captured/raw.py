"""Raw columns at fixed addresses: one packed buffer, in pinned memory and on the device, moved by one copy.

A layout (`raw_layout`) has room for B rows and, of each list column, a capacity of elements. Everything a kernel might read
is defined: rows past a partial batch are empty lists, and null flags are always there. Not here: when copies run.

What a source delivers in pinned memory goes to the device as it is; everything else is packed first, with numpy, in the caller's
thread: torch shares copies of this size between OpenMP threads, which took 24 ms instead of 0.2 as soon as others used the same cores
(H200 host, two processes, 2026-11-30).

B rows, N elements of a list column, C columns of a run or a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rap_trainer.batch import Block, Column, RawBatch
from rap_trainer.captured.copy_rows import Copier
from rap_trainer.captured.raw_layout import HEADER_BYTES, RawLayout, Run

Array = npt.NDArray[Any]

PACKERS = 4
"""Threads that copy at once what is large."""
SHARED_BYTES = 4 << 20
"""Jagged columns of fewer bytes are copied by the caller alone: waking threads takes about 0.1 ms (H200 host)."""


STAGED_BYTES = 64 << 10
"""What CUDA takes from any memory before a call returns, in a buffer of its own."""


class Overflow(ValueError):
    """A batch holds more elements of a list column than the layout has room for."""

    def __init__(self, needed: Mapping[str, int]) -> None:
        self.needed = dict(needed)
        super().__init__("more elements than captured: " + ", ".join(f"{k} {v}" for k, v in needed.items()))


class _Move(NamedTuple):
    """Adjacent columns of the buffer, and where they come from."""

    target_CN: Array
    start: int
    """Bytes from the buffer's beginning to the first of them."""
    pitch: int
    """Bytes from one to the next."""
    itemsize: int
    block: int
    rows: slice
    """Of the block."""


@dataclass(frozen=True, kw_only=True)
class _Route:
    """What packing does with batches whose blocks have the same columns."""

    moves: list[_Move]
    rest: list[tuple[str, str, Array]]
    """(column, field, its place) of what is in no block."""
    apart: list[tuple[str, str]]
    """(column, field) of what may be in no block: null flags of a block's columns are in a block, or there are none."""
    nulls: set[str]
    """Columns whose null flags are in a block."""
    rows_of_one: bool
    """Every list column is in a block: its lists have one element each."""


class Copies(NamedTuple):
    """How a batch goes to the device from its own memory: its blocks, and every other tensor by its address."""

    route: _Route
    targets: list[int]
    sources: list[int]
    sizes: list[int]
    nulls: set[str]
    """Columns whose null flags are copied."""

    def add(self, target: int, source: torch.Tensor) -> None:
        self.targets.append(target)
        self.sources.append(source.data_ptr())
        self.sizes.append(source.nbytes)


class RawBuffer:
    """One buffer of a layout, as tensors."""

    def __init__(self, layout: RawLayout, device: torch.device, *, pinned: bool = False) -> None:
        self.layout = layout
        self.bytes = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned)
        self.header = self.bytes[:HEADER_BYTES]
        """num_rows and scale together, bytes."""
        self._moving = self.bytes[: layout.moving_bytes]
        self._parts = {(part.column, part.field): part.view(self.bytes) for part in layout.parts}
        self._starts = {(part.column, part.field): (part.start, part.dtype) for part in layout.parts}
        self._places = {
            (name, run.field): (run, row) for run in layout.runs for row, name in enumerate(run.columns) if name
        }
        self._views = {run: run.matrix(self.bytes) for run in layout.runs}
        if not self.bytes.is_cuda:
            self._num_rows, self._scale = (self._parts["", field].numpy() for field in ("num_rows", "scale"))
        self._routes: dict[tuple[tuple[str, tuple[str, ...]], ...], _Route] = {}
        self._header_of: tuple[int, int] | None = None
        """(rows, rows of all ranks) that the header tells; None: not known here."""
        self._with_nulls: set[str] = set()
        """Columns whose null flags the latest batch has set."""
        self.rows_of_one: int | None = None
        """Every list has one element in so many rows, and none in those behind; None: lists of other lengths."""

    def part(self, column: str, field: str) -> torch.Tensor:
        return self._parts[column, field]

    def take_over(self, smaller: RawBuffer) -> None:
        """Copies what a buffer of less room holds."""
        for part in smaller.layout.parts:
            self._parts[part.column, part.field][: part.size].copy_(part.view(smaller.bytes))
        self.rows_of_one, self._with_nulls = smaller.rows_of_one, set(smaller._with_nulls)
        self._header_of = smaller._header_of

    def receive(self, host: RawBuffer) -> None:
        """Copies a buffer of the same layout, on the current stream, without what this one holds already."""
        self._with_nulls, self._header_of = set(host._with_nulls), host._header_of
        if host.rows_of_one is not None and host.rows_of_one == self.rows_of_one:
            self._moving.copy_(host._moving, non_blocking=True)
            return
        self.bytes.copy_(host.bytes, non_blocking=True)
        self.rows_of_one = host.rows_of_one

    def copies(self, host: RawBuffer, raw: RawBatch) -> Copies | None:
        """How the batch's own memory, pinned, brings all that differs from what this buffer holds; None: it must be packed.

        A source keeps all columns apart from blocks in one kind of memory, so one is looked at (1.5 us each). What lies elsewhere is
        copied right all the same, and more slowly. Raises Overflow.
        """
        rows = raw.num_rows
        if rows > self.layout.batch_size:
            raise ValueError(f"a batch of {rows} rows, captured for {self.layout.batch_size}")
        route, whole = host._route(raw.blocks), rows == self.layout.batch_size
        if self.rows_of_one != rows if route.rows_of_one else not whole:
            return None
        if not route.rows_of_one and (needed := host.shortage(raw)):
            raise Overflow(needed)
        if any(raw.columns[name].nulls_N is None for name in self._with_nulls - route.nulls):
            return None
        copies = Copies(route, [], [], [], set(route.nulls))
        start, starts = self.bytes.data_ptr(), self._starts
        for name, field in route.apart:
            tensor = _tensor(raw.columns[name], field)
            if tensor is None:
                continue
            place, dtype = starts[name, field]
            if tensor.dtype is not dtype or not tensor.is_contiguous() or not (copies.sizes or tensor.is_pinned()):
                return None
            copies.add(start + place, tensor)
            if field == "nulls":
                copies.nulls.add(name)
        if self.layout.needs_row_ids:
            copies.add(start + starts["", "row_ids"][0], raw.row_ids_B)
        return copies if all(_is_near(block.data_CB) for block in raw.blocks) else None

    def receive_as_it_is(self, host: RawBuffer, raw: RawBatch, copies: Copies, copier: Copier) -> None:
        """Copies a batch; its memory must stay until that is done. `host` lends its header."""
        start = self.bytes.data_ptr()
        if self._header_of != (raw.num_rows, raw.global_rows):
            host._set_header(raw)
            copier.one(start, host.bytes.data_ptr(), HEADER_BYTES)
            self._header_of = host._header_of
        for move in copies.route.moves:
            data_CB, first, last = raw.blocks[move.block].data_CB, move.rows.start, move.rows.stop
            pitch = data_CB.stride(0) * move.itemsize
            size = raw.num_rows * move.itemsize
            copier.rows(start + move.start, move.pitch, data_CB.data_ptr() + first * pitch, pitch, size, last - first)
        for target, source, size in zip(copies.targets, copies.sources, copies.sizes, strict=True):
            copier.one(target, source, size)
        self._with_nulls |= copies.nulls
        if not copies.route.rows_of_one:
            self.rows_of_one = None

    def _set_header(self, raw: RawBatch) -> None:
        self._num_rows[0], self._scale[0] = raw.num_rows, 1.0 / max(raw.global_rows, 1)
        self._header_of = (raw.num_rows, raw.global_rows)

    def batch(self) -> RawBatch:
        """The buffer as a batch of `batch_size` rows: what kernels are bound to."""
        columns = {
            name: Column(
                values_N=self.part(name, "values"),
                nulls_N=self._parts.get((name, "nulls")),
                lengths_B=self._parts.get((name, "lengths")),
            )
            for name, field in self._places
            if field == "values"
        }
        rows = self.layout.batch_size
        return RawBatch(
            columns=columns,
            row_ids_B=self.part("", "row_ids"),
            event_times_s_B=torch.empty(0, dtype=torch.float64, device=self.bytes.device),
            num_rows=rows,
            global_rows=rows,
        )

    # -- packing: runs on the host in every step, so it is short

    def pack(self, raw: RawBatch, workers: Executor | None = None) -> None:
        """Copies a batch in, blocks as they are, with `PACKERS - 1` of `workers` helping with large jagged columns.

        Raises Overflow, before anything is written, and ValueError for too many rows.
        """
        layout, rows = self.layout, raw.num_rows
        if rows > layout.batch_size:
            raise ValueError(f"a batch of {rows} rows, captured for {layout.batch_size}")
        route = self._route(raw.blocks)
        if not route.rows_of_one and (needed := self.shortage(raw)):
            raise Overflow(needed)
        self._set_header(raw)
        if layout.needs_row_ids:
            self.part("", "row_ids")[:rows].copy_(raw.row_ids_B)
        for move in route.moves:
            np.copyto(move.target_CN[:, :rows], raw.blocks[move.block].data_CB[move.rows].numpy())
        self._with_nulls -= route.nulls
        self._pack_columns(raw, route, workers)
        self._with_nulls |= route.nulls

    def holds_one_each(self, raw: RawBatch) -> bool:
        """Whether no row of any list column has more than one element; lists in blocks have exactly one."""
        if self._route(raw.blocks).rows_of_one:
            return True
        lengths = (raw.columns[name].lengths_B for name in self.layout.capacities if name in raw.columns)
        return all(each is None or not each.numel() or int(each.max()) <= 1 for each in lengths)

    def shortage(self, raw: RawBatch) -> dict[str, int]:
        """Elements of the list columns that have no room for the batch."""
        return {
            name: raw.columns[name].values_N.numel()
            for name, room in self.layout.capacities.items()
            if name in raw.columns and raw.columns[name].values_N.numel() > room
        }

    def _route(self, blocks: Sequence[Block]) -> _Route:
        """Where blocks of these columns go, found once for each combination of columns."""
        key = tuple((block.field, block.names) for block in blocks)
        if key not in self._routes:
            held = {(name, block.field) for block in blocks for name in block.names}
            rows_of_one = all((name, "values") in held for name in self.layout.capacities)
            self._routes[key] = _Route(
                moves=[
                    _Move(
                        target_CN=self._views[run][first : first + stop - start].numpy(),
                        start=run.start + first * run.pitch,
                        pitch=run.pitch,
                        itemsize=run.dtype.itemsize,
                        block=number,
                        rows=slice(start, stop),
                    )
                    for number, block in enumerate(blocks)
                    for run, first, start, stop in _adjacent(
                        [self._places.get((name, block.field)) for name in block.names]
                    )
                ],
                rest=[
                    (name, field, self._parts[name, field].numpy())
                    for name, field in self._places
                    if (name, field) not in held and not (rows_of_one and field == "lengths")
                ],
                apart=[
                    (name, field)
                    for name, field in self._places
                    if (name, field) not in held
                    and not (rows_of_one and field == "lengths")
                    and not (field == "nulls" and (name, "values") in held)
                ],
                nulls={name for name, field in held if field == "nulls"},
                rows_of_one=rows_of_one,
            )
        return self._routes[key]

    def _pack_columns(self, raw: RawBatch, route: _Route, workers: Executor | None) -> None:
        """What no block has moved, tensor by tensor; what a batch lacks is made empty."""
        rows, columns = raw.num_rows, raw.columns
        pairs: list[tuple[Array, Array]] = []
        for name, field, view in route.rest:
            column = columns[name]
            source = _tensor(column, field)
            if field == "lengths":
                if rows < view.size:
                    view[rows:] = 0
            elif field == "nulls":
                if source is None:
                    if name in self._with_nulls:
                        view[:] = 0
                        self._with_nulls.discard(name)
                    continue
                self._with_nulls.add(name)
            assert source is not None
            pairs.append((view[: source.numel()], source.numpy()))
        self._set_lengths(rows, route.rows_of_one)
        _copy(pairs, workers)

    def _set_lengths(self, rows: int, ones: bool) -> None:
        """A block's lists have one element each: their lengths are written only if the buffer holds others."""
        if not ones:
            self.rows_of_one = None
        elif self.rows_of_one != rows:
            for run, view_CN in self._views.items():
                if run.field == "lengths":
                    view_CN[:, :rows].fill_(1)
                    view_CN[:, rows:].zero_()
            self.rows_of_one = rows


def _tensor(column: Column, field: str) -> torch.Tensor | None:
    if field == "values":
        return column.values_N
    return column.nulls_N if field == "nulls" else column.lengths_B


def _is_near(data_CB: torch.Tensor) -> bool:
    """Whether a copy of it to the device needs no copy before: it is pinned, or small."""
    return data_CB.nbytes <= STAGED_BYTES or data_CB.is_pinned()


def _adjacent(places: Sequence[tuple[Run, int] | None]) -> list[tuple[Run, int, int, int]]:
    """(run, its first row, block rows [start, stop)) for rows of a block that lie side by side in a run."""
    found: list[tuple[Run, int, int, int]] = []
    for i, place in enumerate(places):
        if place is None:  # a column that no feature reads
            continue
        run, row = place
        if found and found[-1][0] is run and found[-1][3] == i and row == found[-1][1] + i - found[-1][2]:
            found[-1] = (run, found[-1][1], found[-1][2], i + 1)
        else:
            found.append((run, row, i, i + 1))
    return found


def _copy(pairs: Sequence[tuple[Array, Array]], workers: Executor | None) -> None:
    """Each second array into the first."""
    if workers is None or sum(source.nbytes for _, source in pairs) < SHARED_BYTES:
        _copy_each(pairs)
        return
    jobs = [workers.submit(_copy_each, pairs[k::PACKERS]) for k in range(1, PACKERS)]
    _copy_each(pairs[::PACKERS])
    for job in jobs:
        job.result()


def _copy_each(pairs: Sequence[tuple[Array, Array]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)
