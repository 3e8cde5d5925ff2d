"""Raw columns at fixed addresses: one packed buffer, in pinned memory and on the device, moved by one copy.

A layout has room for B rows and, of each list column, a capacity of elements. Everything a kernel might read is
defined: rows past a partial batch are empty lists, and null flags are always there. Not here: when copies run.

B rows, N elements of a list column.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.types import ValueType

from rap_trainer.batch import Column, RawBatch
from rap_trainer.captured.blocks import pad_to
from rap_trainer.program.columns import TORCH_DTYPES

ALIGNMENT_BYTES = 256
"""Of every column, as allocations of the device are aligned."""
PACKERS = 4
"""Threads that copy at once: 108 tensors of 16 KB take one thread longer than a step takes the GPU (H200 host)."""
ROOM = 1.25
"""Capacity of a list column over the elements seen: growing means a new capture."""


class Overflow(ValueError):
    """A batch holds more elements of a list column than the layout has room for."""

    def __init__(self, needed: Mapping[str, int]) -> None:
        self.needed = dict(needed)
        super().__init__("more elements than captured: " + ", ".join(f"{k} {v}" for k, v in needed.items()))


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
class RawLayout:
    """Where every input of a batch lies. A value."""

    batch_size: int
    capacities: Mapping[str, int]
    """Elements of each list column."""
    parts: tuple[Part, ...]
    num_bytes: int
    needs_row_ids: bool
    """Some op draws by the identity of a row."""


def raw_layout(graph: FeatureGraph, *, batch_size: int, capacities: Mapping[str, int]) -> RawLayout:
    """The layout of a graph's inputs and label. Lists without a capacity get one element a row."""
    parts: list[Part] = []
    at = 0

    def add(column: str, field: str, dtype: torch.dtype, size: int) -> None:
        nonlocal at
        parts.append(Part(column, field, dtype, size, at))
        at = pad_to(parts[-1].end, ALIGNMENT_BYTES)

    add("", "num_rows", torch.int32, 1)
    add("", "scale", torch.float32, 1)
    add("", "row_ids", torch.int64, batch_size)
    draws = any(node.op is not None and node.op.stem == "sample" for node in graph.nodes)
    held: dict[str, int] = {}
    for name in dict.fromkeys((*graph.inputs, graph.label)):
        declared = graph.columns[name]
        if declared.is_list:
            held[name] = max(capacities.get(name, batch_size), 1)
        size = held.get(name, batch_size)
        add(name, "values", TORCH_DTYPES[declared.dtype], size)
        if _nullable(declared, name, graph):
            add(name, "nulls", torch.bool, size)
        if declared.is_list:
            add(name, "lengths", torch.int32, batch_size)
    return RawLayout(batch_size=batch_size, capacities=held, parts=tuple(parts), num_bytes=at, needs_row_ids=draws)


def _nullable(declared: ValueType, name: str, graph: FeatureGraph) -> bool:
    return declared.nullable and name != graph.label


class RawBuffer:
    """One buffer of a layout, as tensors."""

    def __init__(self, layout: RawLayout, device: torch.device, *, pinned: bool = False) -> None:
        self.layout = layout
        self.bytes = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned)
        self._parts = {(part.column, part.field): part.view(self.bytes) for part in layout.parts}
        self._inputs = [
            (part.column, part.field, self._parts[part.column, part.field]) for part in layout.parts if part.column
        ]
        self._with_nulls: set[str] = set()
        """Columns whose null flags the latest batch has set."""

    def part(self, column: str, field: str) -> torch.Tensor:
        return self._parts[column, field]

    def take_over(self, smaller: RawBuffer) -> None:
        """Copies what a buffer of less room holds."""
        for part in smaller.layout.parts:
            self._parts[part.column, part.field][: part.size].copy_(part.view(smaller.bytes))

    @property
    def header(self) -> torch.Tensor:
        """num_rows and scale together, bytes."""
        return self.bytes[: ALIGNMENT_BYTES + 4]

    def batch(self) -> RawBatch:
        """The buffer as a batch of `batch_size` rows: what kernels are bound to."""
        columns = {
            name: Column(
                values_N=self.part(name, "values"),
                nulls_N=self._parts.get((name, "nulls")),
                lengths_B=self._parts.get((name, "lengths")),
            )
            for name in dict.fromkeys(part.column for part in self.layout.parts if part.column)
        }
        rows = self.layout.batch_size
        return RawBatch(
            columns=columns,
            row_ids_B=self.part("", "row_ids"),
            event_times_s_B=torch.empty(0, dtype=torch.float64, device=self.bytes.device),
            num_rows=rows,
            global_rows=rows,
        )

    def pack(self, raw: RawBatch, workers: Executor | None = None) -> None:
        """Copies a batch in, with `PACKERS - 1` of `workers` helping.

        Raises Overflow, before anything is written, and ValueError for too many rows.
        """
        rows, layout = raw.num_rows, self.layout
        if rows > layout.batch_size:
            raise ValueError(f"a batch of {rows} rows, captured for {layout.batch_size}")
        needed = {
            name: raw.columns[name].values_N.numel()
            for name, room in layout.capacities.items()
            if raw.columns[name].values_N.numel() > room
        }
        if needed:
            raise Overflow(needed)
        self.part("", "num_rows").fill_(rows)
        self.part("", "scale").fill_(1.0 / max(raw.global_rows, 1))
        targets, sources = self._pairs(raw)
        if workers is None:
            torch._foreach_copy_(targets, sources)
            return
        jobs = [
            workers.submit(torch._foreach_copy_, targets[k::PACKERS], sources[k::PACKERS]) for k in range(1, PACKERS)
        ]
        torch._foreach_copy_(targets[::PACKERS], sources[::PACKERS])
        for job in jobs:
            job.result()

    def _pairs(self, raw: RawBatch) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What goes where; what a batch lacks is made empty. Short, for it runs on the host in every step."""
        rows, full = raw.num_rows, raw.num_rows == self.layout.batch_size
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        if self.layout.needs_row_ids:
            targets.append(self.part("", "row_ids")[:rows])
            sources.append(raw.row_ids_B)
        columns = raw.columns
        for name, field, view in self._inputs:
            column = columns[name]
            source: torch.Tensor | None
            if field == "values":
                source = column.values_N
            elif field == "lengths":
                source = column.lengths_B
                if not full:
                    view[rows:].zero_()
            else:
                source = column.nulls_N
                if source is None:
                    if name in self._with_nulls:
                        view.zero_()
                        self._with_nulls.discard(name)
                    continue
                self._with_nulls.add(name)
            assert source is not None
            targets.append(view if source.shape == view.shape else view[: source.numel()])
            sources.append(source)
        return targets, sources
