"""The order in which all ranks read the files: a log that the first rank writes and every rank reads."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """What a record of the log says."""

    FILE = "file"
    """Read this file next."""
    QUARANTINED = "quarantined"
    """This file cannot be read; nobody reads it."""
    END = "end"
    """No file will follow."""
    ERROR = "error"
    """The source cannot go on."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of the log."""

    kind: Kind
    name: str = ""
    """File name relative to the source's directory."""
    order: int = 0
    """Place of the file among all files of the job's life."""
    first_row: int = 0
    """Where to begin."""
    size_bytes: int = 0
    modified_s: float = 0.0
    """Seconds since the epoch."""
    reason: str = ""
    """Of a quarantined file."""
    message: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        fields = json.loads(text)
        return cls(**{**fields, "kind": Kind(fields["kind"])})


class KeyValueStore(Protocol):
    """The part of `torch.distributed.Store` that the log needs; the trainer passes its own."""

    def set(self, key: str, value: str, /) -> None:
        """Stores a value."""

    def get(self, key: str, /) -> bytes:
        """The value of a key that is there."""

    def check(self, keys: Sequence[str], /) -> bool:
        """Whether all keys are there; never blocks."""


class LocalStore:
    """A store within one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        """Stores a value."""
        with self._lock:
            self._values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        """The value of a key that is there."""
        with self._lock:
            return self._values[key]

    def check(self, keys: Sequence[str], /) -> bool:
        """Whether all keys are there."""
        with self._lock:
            return all(key in self._values for key in keys)


class CatalogueLog:
    """Records by number. Only the first rank appends."""

    def __init__(self, store: KeyValueStore, prefix: str = "rap/files") -> None:
        self._store = store
        self._prefix = prefix
        self._length = 0

    def append(self, record: Record) -> None:
        """Adds a record."""
        self._store.set(f"{self._prefix}/{self._length}", record.to_json())
        self._length += 1

    def get(self, number: int) -> Record | None:
        """The record, or None if it is not written yet."""
        key = f"{self._prefix}/{number}"
        return Record.from_json(self._store.get(key)) if self._store.check([key]) else None
