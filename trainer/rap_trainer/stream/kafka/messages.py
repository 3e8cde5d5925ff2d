"""Message values to one Arrow record batch, bad messages and rows apart: what all formats share.

Rows are numbered over the messages that were given together, in order; an empty message has none, and one that
cannot be read at all counts as one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from rap_trainer.stream.dead_letters import BadReason, BadRow

if TYPE_CHECKING:  # the reader process does without torch
    from rap_trainer.stream.rows import Int64s

_REGISTRY_HEADER_BYTES = 5  # a zero byte and the schema's number, as Confluent's serializers write them


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """What became of some consecutive messages."""

    num_rows: tuple[int, ...]
    """Of each message, the bad ones included."""
    batch: pa.RecordBatch | None
    row_numbers: Int64s | None
    """Number of each row of the batch; None: one by one."""
    bad: tuple[BadRow, ...]


class Parser(Protocol):
    """One format."""

    def parse(self, values: Sequence[bytes | None]) -> Iterator[Parsed]:
        """All messages, in order, as few pieces as their schemas allow. Bad content never raises."""


def bad_message(value: bytes, detail: str, *, row: int = 0) -> BadRow:
    """A message that cannot be read at all."""
    return BadRow(row=row, reason=BadReason.MESSAGE, detail=detail, payload=value)


def registry_framed(value: bytes) -> bool:
    """Whether a schema registry's serializer wrote it."""
    return value[:1] == b"\0" and len(value) >= _REGISTRY_HEADER_BYTES


def registry_detail(value: bytes) -> str:
    """What to say of such a message."""
    number = int.from_bytes(value[1:_REGISTRY_HEADER_BYTES], "big")
    hint = "hint: produce Arrow, JSON lines or CSV without a schema registry's serializer"
    return f"framed for a schema registry (schema {number}), which is not supported; {hint}"


def without_first_rows(parsed: Parsed, count: int) -> Parsed:
    """Without the first `count` rows of the first message: those were consumed before."""
    count = min(count, parsed.num_rows[0])
    if count == 0:
        return parsed
    numbers, batch = parsed.row_numbers, parsed.batch
    if batch is not None:
        gone = count if numbers is None else int(np.searchsorted(numbers, count))
        batch = batch.slice(gone)
        numbers = None if numbers is None else numbers[gone:] - count
    return Parsed(
        num_rows=(parsed.num_rows[0] - count, *parsed.num_rows[1:]),
        batch=batch if batch is not None and batch.num_rows else None,
        row_numbers=numbers,
        bad=tuple(replace(bad, row=bad.row - count) for bad in parsed.bad if bad.row >= count),
    )
