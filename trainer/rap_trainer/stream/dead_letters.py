"""Bad records: why they are bad, and where they go so that nobody loses them.

Source-neutral: the origin is a unit (a file, a partition) and a place in it.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:  # reader processes come here too, and do without torch
    from rap_trainer.batch import Position

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 20  # of one dead-letter file: opens in any editor
MAX_FILES = 1000  # 64 GB: beyond it the oldest is deleted, so that poison cannot fill a disk
MAX_LOGGED = 20  # bad records whose place is logged singly; counts go on


class BadReason(StrEnum):
    """Why a row cannot be trained; the metric's label."""

    LABEL = "label"
    """The label is neither 0 nor 1."""
    LABEL_MISSING = "label_missing"
    OUT_OF_RANGE = "out_of_range"
    """A number beyond its declared type, such as an id past 2^63."""
    UNPARSEABLE = "unparseable"
    """Text that is not a value of the declared type."""
    FIELDS = "fields"
    """A line with too few or too many fields."""
    MESSAGE = "message"
    """A whole message that cannot be decoded."""


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row of a batch or block that cannot be trained."""

    row: int
    """Its number in what was decoded."""
    reason: BadReason
    detail: str
    """Column and value, for a person."""
    payload: bytes
    """The row as one-row JSON, or the raw bytes it came as."""


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A bad record on its way out."""

    reason: str
    detail: str
    unit: str
    """File name, or `topic/partition`."""
    position: Position
    payload: bytes


class DeadLetters(Protocol):
    """Takes bad records. A record may come twice after a crash; (unit, position) tells."""

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Keeps the letters; durable after `flush`."""

    def flush(self) -> None:
        """Returns when all letters written so far are durable."""

    def close(self) -> None:
        """Flushes and releases; idempotent."""


class LoggedDeadLetters:
    """Without a place for dead letters: the first few are named in the log, the rest only counted."""

    def __init__(self) -> None:
        self._seen = 0

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Logs place and reason of the first records."""
        for letter in letters[: max(0, MAX_LOGGED - self._seen)]:
            logger.warning("bad record %s: %s", place(letter), letter.detail)
        if self._seen < MAX_LOGGED <= self._seen + len(letters):
            logger.warning("further bad records are only counted; set deadLetter.path to keep them")
        self._seen += len(letters)

    def flush(self) -> None:
        """Nothing to make durable."""

    def close(self) -> None:
        """Nothing to release."""


class FileDeadLetters:
    """JSON lines in a directory, a new file every `max_file_bytes`, at most `max_files` kept.

    A line holds reason, detail, unit, offset, row and either `record` (JSON) or `base64` (bytes).
    """

    def __init__(self, directory: Path, *, max_file_bytes: int = MAX_FILE_BYTES, max_files: int = MAX_FILES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        numbers = [int(path.stem.removeprefix("dead-")) for path in self.files()]
        self._number = max(numbers, default=0)
        self._file = self._open_next()

    def files(self) -> list[Path]:
        """All files of the directory, oldest first."""
        return sorted(self._directory.glob("dead-" + "[0-9]" * 8 + ".jsonl"))

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Appends the letters; rotates between two letters."""
        for letter in letters:
            self._file.write(json.dumps(_as_json(letter)).encode() + b"\n")
            if self._file.tell() >= self._max_file_bytes:
                self._file.close()
                self._file = self._open_next()

    def flush(self) -> None:
        """Hands what is buffered to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file; an empty one is removed."""
        if self._file.closed:
            return
        empty = self._file.tell() == 0
        self._file.close()
        if empty:
            self._path(self._number).unlink(missing_ok=True)

    def _open_next(self) -> BinaryIO:
        self._number += 1
        for old in self.files()[: -(self._max_files - 1) or None]:
            old.unlink(missing_ok=True)
        return self._path(self._number).open("ab")

    def _path(self, number: int) -> Path:
        return self._directory / f"dead-{number:08d}.jsonl"


def place(letter: DeadLetter) -> str:
    """Where a record came from, for a person."""
    row = f" row {letter.position.row}" if letter.position.row else ""
    return f"{letter.unit}:{letter.position.offset}{row}"


def _as_json(letter: DeadLetter) -> dict[str, object]:
    record: dict[str, object] = {
        "reason": letter.reason,
        "detail": letter.detail,
        "unit": letter.unit,
        "offset": letter.position.offset,
        "row": letter.position.row,
    }
    try:
        record["record"] = json.loads(letter.payload)
    except ValueError:
        record["base64"] = base64.b64encode(letter.payload).decode()
    return record
