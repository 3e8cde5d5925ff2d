"""Raw columns of all ranks' rows to the ranks that preprocess them: one exchange of sizes, one of bytes.

A rank that cannot give what it should says so instead of its sizes, so that no other one waits for it. Not here: which columns.

B rows of this rank, N elements of a jagged column, W ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from rap_contract.types import ValueType

from rap_trainer.batch import Column, RawBatch
from rap_trainer.program.columns import TORCH_DTYPES, BatchError

ALIGNMENT_BYTES = 8
"""Of every tensor's bytes, so that they can be looked at as the widest type there is."""
FAILED = -1
"""In place of a size: this rank has no batch to give."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What one rank preprocesses: its columns, in an order that all ranks know."""

    columns: tuple[tuple[str, ValueType], ...]

    def tensors(self, raw: RawBatch) -> list[torch.Tensor]:
        """Row ids, then values, null flags and lengths of each column. Raises BatchError."""
        found = [raw.row_ids_B]
        for name, declared in self.columns:
            column = raw.columns.get(name)
            if column is None:
                raise BatchError(
                    f"column {name} is missing from the batch; the source delivers {', '.join(raw.columns)}"
                )
            values = column.values_N
            if values.dtype is not TORCH_DTYPES[declared.dtype] or (column.lengths_B is None) == declared.is_list:
                raise BatchError(f"column {name} is declared {declared}, its values are {values.dtype}")
            nulls = column.nulls_N
            found += [values, torch.zeros(values.numel(), dtype=torch.bool) if nulls is None else nulls]
            if column.lengths_B is not None:
                found.append(column.lengths_B)
        return found

    def dtypes(self) -> list[torch.dtype]:
        """Of the same tensors."""
        found = [torch.int64]
        for _, declared in self.columns:
            found += [TORCH_DTYPES[declared.dtype], torch.bool, *([torch.int32] if declared.is_list else [])]
        return found

    def batch(self, like: RawBatch, tensors: Sequence[torch.Tensor]) -> RawBatch:
        """All ranks' rows as one batch."""
        row_ids, rest, columns = tensors[0], list(tensors[1:]), {}
        for name, declared in self.columns:
            values, nulls = rest.pop(0), rest.pop(0)
            columns[name] = Column(values_N=values, nulls_N=nulls, lengths_B=rest.pop(0) if declared.is_list else None)
        return replace(
            like,
            columns=columns,
            row_ids_B=row_ids,
            event_times_s_B=torch.full((row_ids.numel(),), float("nan"), dtype=torch.float64, device=row_ids.device),
            num_rows=row_ids.numel(),
            blocks=(),
        )


def gathered(raw: RawBatch, wanted: Mapping[int, Wanted], *, rank: int, group: dist.ProcessGroup) -> RawBatch | None:
    """This rank's columns of all ranks' rows, in rank order; None if it preprocesses nothing for others.

    `wanted`: by rank, equal on all. Collective. Raises BatchError on every rank if one has not what it should give.
    """
    size, device = dist.get_world_size(group), raw.row_ids_B.device
    outgoing: dict[int, list[torch.Tensor]] = {}
    failure: BatchError | None = None
    try:
        outgoing = {owner: [_bytes(t.to(device)) for t in each.tensors(raw)] for owner, each in wanted.items()}
    except BatchError as error:
        failure = error
    width = max((len(each.dtypes()) for each in wanted.values()), default=1)
    sizes = torch.zeros(size, width, dtype=torch.int64)
    if failure is not None:
        sizes.fill_(FAILED)
    for owner, tensors in outgoing.items():
        sizes[owner, : len(tensors)] = torch.tensor([tensor.numel() for tensor in tensors])
    sizes = sizes.to(device)
    arriving = torch.zeros_like(sizes)
    dist.all_to_all_single(arriving, sizes, group=group)
    if failure is not None:
        raise failure
    lacking = [peer for peer, row in enumerate(arriving.tolist()) if FAILED in row]
    if lacking:
        raise BatchError(
            f"rank {lacking[0]} cannot give the raw columns that this rank preprocesses for it; see its log"
        )
    sent = [sum(t.numel() for t in outgoing.get(owner, [])) for owner in range(size)]
    taken = [int(row) for row in arriving.sum(1).tolist()]
    parts = [tensor for owner in range(size) for tensor in outgoing.get(owner, [])]
    data = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8, device=device)
    received = torch.zeros(sum(taken), dtype=torch.uint8, device=device)
    dist.all_to_all_single(received, data, output_split_sizes=taken, input_split_sizes=sent, group=group)
    mine = wanted.get(rank)
    return None if mine is None else mine.batch(raw, _tensors(received, arriving.tolist(), mine.dtypes()))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes behind their number, both as multiples of the alignment."""
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    head = torch.tensor([flat.numel()], dtype=torch.int64).view(torch.uint8).to(flat.device)
    rest = torch.zeros(-flat.numel() % ALIGNMENT_BYTES, dtype=torch.uint8, device=flat.device)
    return torch.cat([head, flat, rest])


def _tensors(
    received: torch.Tensor, sizes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """One tensor of each type, the ranks' parts one behind the other."""
    parts: list[list[torch.Tensor]] = [[] for _ in dtypes]
    at = 0
    for row in sizes:
        for number, size in enumerate(row[: len(dtypes)]):
            length = int(received[at : at + ALIGNMENT_BYTES].view(torch.int64))
            begin = at + ALIGNMENT_BYTES
            parts[number].append(received[begin : begin + length].view(dtypes[number]))
            at += size
    return [torch.cat(each) for each in parts]
