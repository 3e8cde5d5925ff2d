"""A batch's columns as addresses for the kernels: checked, uploaded only when they changed, never waiting.

A captured step binds its fixed buffers once; the eager runtime binds every batch, and allocators that give the
same memory again make that a look-up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from rap_contract.types import ValueType

from rap_trainer.batch import Column, RawBatch
from rap_trainer.fusion.buffers import Scratch
from rap_trainer.fusion.tables import Tables
from rap_trainer.program.columns import TORCH_DTYPES, BatchError

MAX_KEPT = 64  # address tables kept for reuse: a few ring slots and allocator states, a few KB each


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Addresses of one batch's columns (and of scratch) on the device; S slots, L lanes."""

    pointers: torch.Tensor
    """int64 [3 S + 4 L]: values, null flags (0: none), lengths (0: one value a row) of each slot; then, lane by lane, the three of the lane's
    slot and a zero."""
    row_ids_B: torch.Tensor
    num_rows: int


class Binder:
    """Makes bindings for one plan."""

    def __init__(
        self, tables: Tables, scratch: Scratch, columns: Mapping[str, ValueType], device: torch.device
    ) -> None:
        slots = self._slots = dict(tables.slots)
        self._lane_slots = tuple(tables.lane_slots)
        self._columns = columns
        self._device = device
        self._fixed = {
            part * len(slots) + slots[slot]: tensor.data_ptr()
            for part, tensors in enumerate((scratch.values, scratch.nulls, scratch.lengths))
            for slot, tensor in tensors.items()
            if slot in slots
        }
        self._raw = [(slot.name, place) for slot, place in slots.items() if slot.node is None]
        self._kept: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()

    def bind(self, raw: RawBatch) -> Binding:
        """The binding of a batch; raises BatchError, naming the column."""
        num_slots = len(self._slots)
        words = [0] * (3 * num_slots)
        for place, address in self._fixed.items():
            words[place] = address
        for name, place in self._raw:
            column = self._checked(raw, name)
            words[place] = column.values_N.data_ptr()
            if column.nulls_N is not None:
                words[num_slots + place] = column.nulls_N.data_ptr()
            if column.lengths_B is not None:
                words[2 * num_slots + place] = column.lengths_B.data_ptr()
        lanes = [(words[at], words[num_slots + at], words[2 * num_slots + at], 0) for at in self._lane_slots]
        words += [word for lane in lanes for word in lane]
        return Binding(pointers=self._upload(tuple(words)), row_ids_B=raw.row_ids_B, num_rows=raw.num_rows)

    def _checked(self, raw: RawBatch, name: str) -> Column:
        column, declared = raw.columns.get(name), self._columns[name]
        if column is None:
            raise BatchError(f"column {name} is missing from the batch; the source delivers {', '.join(raw.columns)}")
        if column.values_N.dtype is not TORCH_DTYPES[declared.dtype]:
            raise BatchError(f"column {name} is declared {declared}, its values are {column.values_N.dtype}")
        if column.values_N.device != self._device:
            raise BatchError(f"column {name} is on {column.values_N.device}, the program runs on {self._device}")
        parts = (column.values_N, column.nulls_N, column.lengths_B)
        if not all(part is None or part.is_contiguous() for part in parts):
            raise BatchError(f"column {name} is not contiguous; kernels read whole columns")
        rows = column.values_N if column.lengths_B is None else column.lengths_B
        if declared.is_list != (column.lengths_B is not None) or rows.numel() < raw.num_rows:
            each = "length" if declared.is_list else "value"
            raise BatchError(f"column {name} is declared {declared}: one {each} for each of {raw.num_rows} rows")
        if column.lengths_B is not None and column.lengths_B.dtype is not torch.int32:
            raise BatchError(f"column {name} has lengths of {column.lengths_B.dtype}; they are int32")
        return column

    def _upload(self, words: tuple[int, ...]) -> torch.Tensor:
        known = self._kept.get(words)
        if known is not None:
            self._kept.move_to_end(words)
            return known
        host = torch.tensor(words or (0,), dtype=torch.int64)
        if self._device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a capture meets new buffers: call bind() on them before the capture begins")
            host = host.pin_memory()
        table = host.to(self._device, non_blocking=True)
        self._kept[words] = table
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return table
