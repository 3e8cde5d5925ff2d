"""What a checkpoint directory holds, and the manifest that makes one checkpoint complete.

    PATH/FENCE                       number of the newest attempt
    PATH/step-0000001200/COMMIT      manifest: its presence says the checkpoint is complete
    PATH/step-0000001200/.metadata   torch.distributed.checkpoint's index, *.distcp its tensors
    PATH/step-0000001200/rank-00000.json   source positions and random state of a rank
    PATH/.writing-…                  one being written; never read, removed by the next attempt

Only names and values; reading and writing tensors is elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rap_contract.job import RAPJob

from rap_trainer.checkpoint.errors import Damaged

FORMAT = 1
COMMIT = "COMMIT"
FENCE = "FENCE"
WRITING = ".writing-"
REPLACED = ".replaced-"
_STEP = re.compile(r"^step-(\d{10,})$")


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """What makes a checkpoint this job's: a change here is another job, a change elsewhere may still load."""

    name: str
    source: str
    """`files`, or `kafka/<topic>`: positions mean nothing in another source."""
    nonce: int
    """spec.restartNonce; checkpoints of a smaller one are left behind."""

    @classmethod
    def of(cls, job: RAPJob) -> JobIdentity:
        kafka = job.spec.source.kafka
        source = "files" if kafka is None else f"kafka/{kafka.topic}"
        return cls(name=job.metadata.name, source=source, nonce=job.spec.restart_nonce)


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    """Size and SHA-256 of a file."""

    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        return cls(size_bytes=path.stat().st_size, sha256=digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of COMMIT."""

    job: JobIdentity
    step: int
    rows: int
    """Rows trained in the job's whole life."""
    rollbacks: int
    """How often the divergence guard has gone back."""
    attempt: int
    world_size: int
    time_s: float
    """Unix time of the snapshot."""
    files: Mapping[str, FileDigest]

    @property
    def size_bytes(self) -> int:
        return sum(digest.size_bytes for digest in self.files.values())

    def to_json(self) -> str:
        """The manifest as text, its own digest on the last line."""
        body = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, indent=1)
        return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ValueError for a truncated, changed or foreign manifest."""
        body, _, digest = text.rstrip("\n").rpartition("\n")
        if hashlib.sha256(body.encode()).hexdigest() != digest:
            raise ValueError("its own checksum does not match")
        document: dict[str, Any] = json.loads(body)
        found = document.pop("format", None)
        if found != FORMAT:
            raise ValueError(f"format {found}, this version reads {FORMAT}")
        document["job"] = JobIdentity(**document["job"])
        document["files"] = {name: FileDigest(**digest) for name, digest in document["files"].items()}
        return cls(**document)


def step_directory(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step-{step:010d}"


def step_of(directory: Path) -> int | None:
    """The step a directory's name says, or None if it is no checkpoint."""
    match = _STEP.match(directory.name)
    return None if match is None else int(match.group(1))


def checkpoints(root: Path) -> list[Path]:
    """Checkpoint directories, newest step first, complete or not. Raises OSError."""
    if not root.exists():
        return []
    found = [path for path in root.iterdir() if step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0, reverse=True)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a complete checkpoint. Raises Damaged."""
    try:
        return Manifest.from_json((directory / COMMIT).read_text())
    except FileNotFoundError:
        raise Damaged(f"{directory} has no {COMMIT} file: it is incomplete") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{directory / COMMIT} cannot be read: {error}") from error


def check_file(directory: Path, name: str, expected: FileDigest) -> None:
    """Compares a file with its digest in the manifest. Raises Damaged."""
    path = directory / name
    try:
        size = path.stat().st_size
        if size != expected.size_bytes:
            raise Damaged(f"{path} has {size} bytes instead of {expected.size_bytes}")
        if FileDigest.of(path) != expected:
            raise Damaged(f"the checksum of {path} does not match: its bytes have changed")
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
