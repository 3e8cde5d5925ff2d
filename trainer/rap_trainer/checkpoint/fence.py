"""Fencing: only the newest attempt may write checkpoints, however late an older one's write arrives.

Claiming the directory and committing a checkpoint hold the same lock, so a commit either comes before a newer claim or
is refused. The lock is POSIX `fcntl`, which NFSv4 and the usual shared file systems carry between hosts.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rap_trainer.checkpoint.errors import Fenced, WriteFailed
from rap_trainer.checkpoint.layout import FENCE


def newest_attempt(root: Path) -> int:
    """The number in the fence file; 0 without one."""
    try:
        return _parse((root / FENCE).read_text())
    except OSError:
        return 0


def claim(root: Path, attempt: int) -> None:
    """Makes `attempt` the owner of the directory, which is created. Raises Fenced, WriteFailed."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root) as file:
            _refuse_older(root, file, attempt)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{attempt}\n".encode(), 0)
            os.fsync(file)
    except OSError as error:
        raise WriteFailed(f"cannot write to {root}: {error.strerror}; see spec.checkpoint.path") from error


@contextmanager
def holding(root: Path, attempt: int) -> Iterator[None]:
    """While held no newer attempt can claim the directory. Raises Fenced, OSError."""
    with _locked(root) as file:
        _refuse_older(root, file, attempt)
        yield


@contextmanager
def _locked(root: Path) -> Iterator[int]:
    file = os.open(root / FENCE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _refuse_older(root: Path, file: int, attempt: int) -> None:
    newest = _parse(os.pread(file, 64, 0).decode(errors="replace"))
    if newest > attempt:
        raise Fenced(f"attempt {newest} has taken over {root}; this is attempt {attempt} and stops writing")


def _parse(text: str) -> int:
    stripped = text.strip()
    return int(stripped) if stripped.isdecimal() else 0
