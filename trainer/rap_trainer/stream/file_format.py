"""What one file gives: its schema, and its rows as record batches from any row on.

A file that cannot be read raises FileProblem with a reason; the formats are in modules of their own.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from rap_trainer.stream.dead_letters import BadRow
from rap_trainer.stream.source import SourceError

if TYPE_CHECKING:  # reader processes come here too, and do without torch
    from rap_trainer.stream.rows import Int64s

PIECE_BYTES = 64 << 20
"""Of one decoded piece: small beside a read-ahead of 128 MiB, and large enough that what each costs counts little: with 32 MiB
Parquet to tensors took 9 % more CPU, with 96 as much (Criteo's columns; 2 Xeon cores, 2026-11-30)."""


class FileReason(StrEnum):
    """Why a file is put aside; the metric's label."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    FOREIGN = "foreign"
    """Not of the declared format."""
    CORRUPT = "corrupt"
    PERMISSION = "permission"


class FileProblem(Exception):  # a finding about a file, not a fault of the program
    """A file cannot be read. `growing`: it may just not be written to its end yet."""

    def __init__(self, reason: FileReason, message: str, *, growing: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.growing = growing


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A run of rows of a file. Rows are numbered from 0 in the file."""

    first_row: int
    num_rows: int
    """Rows of the file this piece stands for, the bad ones included."""
    batch: pa.RecordBatch
    row_numbers: Int64s | None = None
    """Number in the file of each row of the batch; None: `first_row` and on."""
    bad: tuple[BadRow, ...] = ()
    """Rows that are not in the batch; `row` counts in the file."""
    owned: bool = False
    """Nobody else looks at the batch's memory."""


class EventFile(Protocol):
    """An open file."""

    schema: pa.Schema
    """All columns of the file."""

    def pieces(self, columns: list[str], first_row: int) -> Iterator[Piece]:
        """The named columns of row `first_row` and all after it. Raises FileProblem."""

    def close(self) -> None:
        """Idempotent."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what Arrow says of damaged content into FileProblem; real I/O errors pass."""
    try:
        yield
    except PermissionError as error:
        raise FileProblem(FileReason.PERMISSION, f"{path}: no permission to read; hint: chmod or chown it") from error
    except OSError as error:
        if error.errno not in (None, 0, errno.EINVAL):
            raise
        raise _corrupt(path, error) from error
    except (pa.ArrowException, EOFError, UnicodeDecodeError) as error:
        if isinstance(error, (pa.ArrowMemoryError, pa.ArrowCancelled)):
            raise
        raise _corrupt(path, error) from error


def require_rows(path: Path, num_rows: int, first_row: int) -> None:
    """Raises SourceError where a file ends before the row a checkpoint goes on from."""
    if num_rows < first_row:
        hint = "hint: files must not change once they are read; bring the old one back"
        raise SourceError(f"{path}: has {num_rows} rows, the checkpoint goes on from row {first_row}; {hint}")


def _corrupt(path: Path, error: Exception) -> FileProblem:
    return FileProblem(
        FileReason.CORRUPT, f"{path}: damaged content ({error}); hint: write it again under another name"
    )
