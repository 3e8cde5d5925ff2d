"""Fencing: only the newest attempt may write checkpoints, however late an older one's write arrives.

Claiming the directory and committing a checkpoint hold the same lock, so a commit either comes before a newer claim or
is refused. The lock is POSIX `fcntl`, which NFSv4 and the usual shared file systems carry between hosts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from rap_contract.pod import ENV_ATTEMPT, ENV_FENCE

from rap_trainer.checkpoint.errors import Fenced, WriteFailed
from rap_trainer.checkpoint.layout import FENCE


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An attempt's right to write. The larger token is the newer attempt."""

    token: int
    """Milliseconds since the epoch at which the attempt was made; grows over jobs of one name too."""
    attempt: int
    """Its number, for people."""

    @classmethod
    def given(cls, environment: Mapping[str, str]) -> Self | None:
        """What the operator or the launcher has decided, if one has. Raises WriteFailed for what is no number."""
        token, attempt = environment.get(ENV_FENCE), environment.get(ENV_ATTEMPT)
        if token is None and attempt is None:
            return None
        try:
            number = int(attempt or "1")
            return cls(token=number if token is None else int(token), attempt=number)
        except ValueError:
            raise WriteFailed(f"{ENV_FENCE}={token} and {ENV_ATTEMPT}={attempt} must be numbers") from None

    def next(self, now_s: float) -> Self:
        """The claim of an attempt that follows this one."""
        return type(self)(token=max(self.token + 1, int(now_s * 1e3)), attempt=self.attempt + 1)

    @property
    def environment(self) -> dict[str, str]:
        """As `given` reads it."""
        return {ENV_FENCE: str(self.token), ENV_ATTEMPT: str(self.attempt)}


NOBODY = Claim(token=0, attempt=0)


def newest_claim(root: Path) -> Claim:
    """Who owns the directory."""
    try:
        return _parse((root / FENCE).read_text())
    except OSError:
        return NOBODY


def take(root: Path, claim: Claim) -> None:
    """Makes `claim` the owner of the directory, which is created. Raises Fenced, WriteFailed."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root) as file:
            _refuse_older(root, file, claim)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{json.dumps(asdict(claim))}\n".encode(), 0)
            os.fsync(file)
    except OSError as error:
        raise WriteFailed(f"cannot write to {root}: {error.strerror}; see spec.checkpoint.path") from error


@contextmanager
def holding(root: Path, claim: Claim) -> Iterator[None]:
    """While held no newer attempt can take the directory. Raises Fenced, OSError."""
    with _locked(root) as file:
        _refuse_older(root, file, claim)
        yield


@contextmanager
def _locked(root: Path) -> Iterator[int]:
    file = os.open(root / FENCE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _refuse_older(root: Path, file: int, claim: Claim) -> None:
    newest = _parse(os.pread(file, 256, 0).decode(errors="replace"))
    if newest.token > claim.token:
        mine = f"this is attempt {claim.attempt} ({claim.token})"
        raise Fenced(f"attempt {newest.attempt} ({newest.token}) has taken over {root}; {mine} and writes no more")


def _parse(text: str) -> Claim:
    try:
        return Claim(**json.loads(text))
    except (ValueError, TypeError):
        return NOBODY  # a new file, or one cut short: its attempt never began
