"""Where every raw input of a batch lies in one buffer, as plain numbers.

Columns with one value a row and a common type lie side by side, in the order in which sources deliver them, so that one
copy moves all of them. What seldom changes (the lengths of lists of one element) and what nobody reads (row identities, without
an op that draws by them) come last, so that a batch is moved without them. Values only: no memory of a batch.

B rows, N elements of a list column, C columns of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.types import Dtype

from rap_trainer.captured.blocks import pad_to
from rap_trainer.program.columns import TORCH_DTYPES

ALIGNMENT_BYTES = 256
"""Of every run, as allocations of the device are aligned."""
COLUMN_BYTES = 16
"""Of every column within a run: the widest access of a kernel."""
ROOM = 1.25
"""Capacity of a list column over the elements seen: growing means a new capture."""
HEADER_BYTES = ALIGNMENT_BYTES + 4
"""`num_rows` and `scale`, first in the buffer."""


@dataclass(frozen=True)
class Part:
    """One tensor of the layout."""

    column: str
    field: str
    """values, nulls, lengths, row_ids, num_rows or scale."""
    dtype: torch.dtype
    size: int
    start: int
    """Bytes from the beginning."""

    @property
    def end(self) -> int:
        return self.start + self.size * self.dtype.itemsize

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[self.start : self.end].view(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Tensors of several columns with the same type and size, `pitch` bytes apart."""

    field: str
    columns: tuple[str, ...]
    dtype: torch.dtype
    size: int
    start: int
    pitch: int

    @property
    def end(self) -> int:
        return self.start + len(self.columns) * self.pitch

    def parts(self) -> list[Part]:
        return [
            Part(name, self.field, self.dtype, self.size, self.start + i * self.pitch)
            for i, name in enumerate(self.columns)
        ]

    def matrix(self, buffer: torch.Tensor) -> torch.Tensor:
        """[C, size], rows `pitch` apart."""
        rows = buffer[self.start : self.end].view(self.dtype).view(len(self.columns), -1)
        return rows[:, : self.size]


@dataclass(frozen=True, kw_only=True)
class RawLayout:
    """Where every input of a batch lies. A value."""

    batch_size: int
    capacities: Mapping[str, int]
    """Elements of each list column."""
    runs: tuple[Run, ...]
    num_bytes: int
    moving_bytes: int
    """From here on a batch moves nothing as long as its lists keep one element each."""
    needs_row_ids: bool
    """Some op draws by the identity of a row."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every tensor, by its place."""
        return tuple(part for run in self.runs for part in run.parts())


class _Building:
    """Runs one behind the other."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.at = 0

    def add(self, field: str, columns: tuple[str, ...], dtype: torch.dtype, size: int) -> None:
        if not columns:
            return
        pitch = pad_to(size * dtype.itemsize, COLUMN_BYTES)
        self.runs.append(Run(field=field, columns=columns, dtype=dtype, size=size, start=self.at, pitch=pitch))
        self.at = pad_to(self.runs[-1].end, ALIGNMENT_BYTES)


def raw_layout(graph: FeatureGraph, *, batch_size: int, capacities: Mapping[str, int]) -> RawLayout:
    """The layout of a graph's inputs and label. Lists without a capacity get one element a row."""
    read = {*graph.inputs, graph.label}
    names = [name for dtype in Dtype for name, kind in graph.columns.items() if kind.dtype is dtype and name in read]
    lists = [name for name in names if graph.columns[name].is_list]
    held = {name: max(capacities.get(name, batch_size), 1) for name in lists}
    sizes = {name: held.get(name, batch_size) for name in names}
    nullable = [name for name in names if graph.columns[name].nullable and name != graph.label]
    building = _Building()
    building.add("num_rows", ("",), torch.int32, 1)
    building.add("scale", ("",), torch.float32, 1)
    draws = any(node.op is not None and node.op.stem == "sample" for node in graph.nodes)
    if draws:
        building.add("row_ids", ("",), torch.int64, batch_size)
    for size in sorted(set(sizes.values()), key=lambda size: (size != batch_size, size)):
        for dtype in Dtype:
            columns = tuple(name for name in names if sizes[name] == size and graph.columns[name].dtype is dtype)
            building.add("values", columns, TORCH_DTYPES[dtype], size)
        building.add("nulls", tuple(name for name in nullable if sizes[name] == size), torch.bool, size)
    moving = building.at
    building.add("lengths", tuple(lists), torch.int32, batch_size)
    if not draws:
        building.add("row_ids", ("",), torch.int64, batch_size)
    return RawLayout(
        batch_size=batch_size,
        capacities=held,
        runs=tuple(building.runs),
        num_bytes=building.at,
        moving_bytes=moving,
        needs_row_ids=draws,
    )
