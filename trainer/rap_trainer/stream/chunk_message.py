"""A chunk of rows as bytes in shared memory, and back: its arrays are copied once, and not at all on the other side.

    message = Message.of(chunk); message.write(memory)   ->   read(memory, message.num_parts)

Only between processes of one user that run the same code: what is no array is pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from rap_trainer.batch import Block
from rap_trainer.stream.backlog import Chunk
from rap_trainer.stream.rows import ColumnRows, Int64s, Rows

Bytes = npt.NDArray[np.uint8]
_ALIGNMENT = 64  # bytes, as Arrow's


@dataclass(frozen=True, kw_only=True)
class End:
    """No chunk follows; with an error, because of it."""

    error: Exception | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is to be written: the sizes of all parts, the pickled part, then arrays."""

    parts: Sequence[Bytes]

    @classmethod
    def of(cls, value: Chunk | End) -> Message:
        buffers: list[pickle.PickleBuffer] = []
        packed = _Packed.of(value) if isinstance(value, Chunk) else value
        pickled = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
        parts = [np.frombuffer(pickled, np.uint8), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
        sizes = np.array([part.nbytes for part in parts], np.int64)
        return cls(parts=[sizes.view(np.uint8), *parts])

    @property
    def num_parts(self) -> int:
        return len(self.parts) - 1

    @property
    def num_bytes(self) -> int:
        return _places([part.nbytes for part in self.parts])[1]

    def write(self, memory: Bytes) -> None:
        """Copies everything into the beginning of `memory`."""
        offsets, _ = _places([part.nbytes for part in self.parts])
        for offset, part in zip(offsets, self.parts, strict=True):
            memory[offset : offset + part.nbytes] = part


def read(memory: Bytes, num_parts: int) -> Chunk | End:
    """What was written; arrays are views of `memory`."""
    sizes: Int64s = memory[: 8 * num_parts].view(np.int64)
    offsets, _ = _places([8 * num_parts, *sizes.tolist()])
    pickled, *buffers = [memory[at : at + size] for at, size in zip(offsets[1:], sizes.tolist(), strict=True)]
    value = pickle.loads(pickled.data, buffers=buffers)  # noqa: S301  # of a process of this user that runs this code
    assert isinstance(value, _Packed | Chunk | End)
    return value.chunk() if isinstance(value, _Packed) else value


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each part begins, and the end of the last one."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """A chunk whose blocks are numpy's and stand once, without the columns that are their rows."""

    bare: Chunk
    names: tuple[str, ...]
    lists: frozenset[str]
    """Columns of a block that are declared as lists."""
    blocks: Sequence[tuple[tuple[str, ...], Literal["values", "nulls"], npt.NDArray[Any]]]
    others: Mapping[str, ColumnRows]
    row_ids_R: Int64s
    event_times_s_R: npt.NDArray[np.float64]

    @classmethod
    def of(cls, chunk: Chunk) -> _Packed | Chunk:
        """A chunk without rows stays what it is."""
        rows = chunk.rows
        if rows is None:
            return chunk
        held = {name for block in rows.blocks for name in block.names}
        return cls(
            bare=replace(chunk, rows=None),
            names=tuple(rows.columns),
            lists=frozenset(name for name in held if rows.columns[name].is_list),
            blocks=[(block.names, block.field, block.data_CB.numpy()) for block in rows.blocks],
            others={name: column for name, column in rows.columns.items() if name not in held},
            row_ids_R=rows.row_ids_R,
            event_times_s_R=np.ascontiguousarray(rows.event_times_s_R),
        )

    def chunk(self) -> Chunk:
        """As it was."""
        blocks = tuple(Block(names=n, field=field, data_CB=torch.from_numpy(data)) for n, field, data in self.blocks)
        values, nulls = self._rows_of("values"), self._rows_of("nulls")
        columns = {
            name: self.others[name]
            if name in self.others
            else ColumnRows(values=values[name], nulls=nulls.get(name), is_list=name in self.lists)
            for name in self.names
        }
        rows = Rows(columns=columns, row_ids_R=self.row_ids_R, event_times_s_R=self.event_times_s_R, blocks=blocks)
        return replace(self.bare, rows=rows)

    def _rows_of(self, field: Literal["values", "nulls"]) -> dict[str, npt.NDArray[Any]]:
        """By column, the rows of all blocks of a field."""
        return {
            name: row
            for names, kind, data in self.blocks
            if kind == field
            for name, row in zip(names, data, strict=True)
        }
