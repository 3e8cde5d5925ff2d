"""Device memory of a fused program: its tables, its scratch, and the outputs of a batch. Allocated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rap_contract.types import Dtype

from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import Comparison, Lane, Lowered, Stage
from rap_trainer.fusion.tables import Tables
from rap_trainer.ops.hashing import twang_mix64

MIXED_POSITIONS = 1024  # 8 KB, of which a kernel reads what its lists are long
TORCH_DTYPES = {Dtype.INT64: torch.int64, Dtype.FLOAT32: torch.float32, Dtype.FLOAT64: torch.float64}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What one batch is written to. Any of the first five may be a buffer of the caller's.

    B rows at most, D numbers a row, F sparse features, N ids at most, P blocks.
    """

    dense_BD: torch.Tensor
    """float32; its row stride may exceed D, columns past the features are not written."""
    labels_B: torch.Tensor
    """float32."""
    ids_N: torch.Tensor
    """int64 or int32, by the layout's places."""
    weights_N: torch.Tensor | None
    """float32, if any feature has weights."""
    lengths_FB: torch.Tensor
    """int32, flat; row r begins at r * rows of the batch."""
    present_BF: torch.Tensor | None
    """int8, in a padded layout: 1 where the row has an id of the feature at that place."""
    block_totals_P: torch.Tensor
    """int64: ids of each block; written only if some list varies in length."""
    overflow: torch.Tensor
    """int32 [1]: not 0 once a batch did not fit: its ids are incomplete and must not be used. Never cleared by kernels."""
    counters: torch.Tensor
    """int64 [1]: NaN that bucketize met, added up over batches."""


@dataclass(frozen=True, kw_only=True)
class DeviceTables:
    """The tables of a plan on a device."""

    steps: torch.Tensor
    ints: torch.Tensor
    floats: torch.Tensor
    lanes: torch.Tensor
    bundles: torch.Tensor
    entries: torch.Tensor
    selections: torch.Tensor
    draws: torch.Tensor
    mixed: torch.Tensor
    """twang_mix64 of the first positions of a list: half of what a sample's draw costs."""
    comparisons: torch.Tensor
    features: torch.Tensor
    blocks: torch.Tensor

    @classmethod
    def of(cls, tables: Tables, *, ids_capacity: int, device: torch.device) -> DeviceTables:
        """Copies the tables of a plan to a device."""

        def words(rows: Sequence[Sequence[int]]) -> torch.Tensor:
            flat = [word for row in rows for word in row]
            return torch.tensor(flat or [0], dtype=torch.int64, device=device)

        return cls(
            steps=words(tables.steps),
            ints=torch.tensor(tables.ints or [0], dtype=torch.int64, device=device),
            floats=torch.tensor(tables.floats or [0.0], dtype=torch.float64, device=device),
            lanes=words(tables.lanes),
            bundles=words(tables.bundles),
            entries=words(tables.entries),
            selections=words(tables.selections),
            draws=words(tables.groups.draws),
            mixed=twang_mix64(torch.arange(MIXED_POSITIONS)).to(device),
            comparisons=words(tables.comparisons),
            features=words(tables.features),
            blocks=words(_blocks(tables, ids_capacity)),
        )


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """What kernels hand to one another within a batch."""

    offsets: torch.Tensor
    counts: torch.Tensor
    chosen: torch.Tensor
    hashes: torch.Tensor
    drawn: torch.Tensor
    places: torch.Tensor
    filled: torch.Tensor
    totals: torch.Tensor
    bases: torch.Tensor
    values: Mapping[Slot, torch.Tensor]
    nulls: Mapping[Slot, torch.Tensor]
    lengths: Mapping[Slot, torch.Tensor]

    @classmethod
    def of(cls, tables: Tables, lowered: Lowered, device: torch.device) -> Scratch:
        """Allocates all scratch of a plan."""

        def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(max(size, 1), dtype=dtype, device=device)

        rows = tables.sizes.batch_size
        draws = len(tables.groups.draws) * rows * tables.groups.tiles.draw[1]
        values: dict[Slot, torch.Tensor] = {}
        nulls: dict[Slot, torch.Tensor] = {}
        lengths: dict[Slot, torch.Tensor] = {}
        for slot, fusion in _written(lowered):
            is_list = isinstance(fusion, Stage)
            size = tables.sizes.scratch[slot] if is_list else rows
            values[slot] = zeros(size, TORCH_DTYPES[fusion.destination.dtype])
            if isinstance(fusion, Stage):
                lengths[slot] = zeros(rows, torch.int32)
                if fusion.weighted:
                    values[Slot(f"{slot.name}/weights", slot.node)] = zeros(size, torch.float32)
            else:
                nulls[slot] = zeros(rows, torch.int8)
        return cls(
            offsets=zeros(tables.num_offsets, torch.int32),
            counts=zeros(tables.num_counts, torch.int32),
            chosen=zeros(tables.num_chosen, torch.int32),
            hashes=zeros(tables.num_hashes, torch.int64),
            drawn=zeros(draws // 32, torch.int32),
            places=zeros(draws, torch.int8),
            filled=zeros(tables.num_filled, torch.int32),
            totals=zeros(len(tables.entries), torch.int64),
            bases=zeros(len(tables.names), torch.int64),
            values=values,
            nulls=nulls,
            lengths=lengths,
        )


def _written(lowered: Lowered) -> list[tuple[Slot, Lane | Stage | Comparison]]:
    """Scratch slots with the fusion that writes each."""
    return [
        (fusion.destination.slot, fusion)
        for wave in lowered.waves
        for fusion in wave
        if fusion.destination.slot is not None
    ]


def _blocks(tables: Tables, ids_capacity: int) -> list[tuple[int, int, int, int]]:
    rows: list[tuple[int, int, int, int]] = []
    first = 0
    for block in tables.layout.blocks:
        end = first + len(block.features)
        room = ids_capacity - block.base
        rows.append((first, end, block.base, room if block.capacity is None else min(block.capacity, room)))
        first = end
    return rows
