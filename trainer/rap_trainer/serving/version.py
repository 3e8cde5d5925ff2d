"""What a directory of published models holds.

    PATH/CURRENT                        name of the newest version; replaced at once
    PATH/version-0000001200/MODEL.json  step, rows, time, job, and a digest of every file; its presence says complete
    PATH/version-0000001200/job.yaml    the job whose chains turn events into this model's input
    PATH/version-0000001200/.metadata   torch.distributed.checkpoint's index, *.distcp its tensors (`model.…`)
    PATH/.publishing-…                  one being made; never read

Only names and values, and finding them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rap_trainer.checkpoint.layout import FileDigest

CURRENT, MODEL, JOB = "CURRENT", "MODEL.json", "job.yaml"
PUBLISHING = ".publishing-"
_VERSION = re.compile(r"^version-(\d{10,})$")


class NoModel(ValueError):
    """There is no complete model where one should be; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """The content of MODEL.json."""

    job: str
    step: int
    rows: int
    """Rows trained in the job's whole life."""
    time_s: float
    """Unix time of the model's state."""
    files: Mapping[str, FileDigest]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: Path) -> Version:
        """Raises NoModel."""
        path = directory / MODEL
        try:
            document: dict[str, Any] = json.loads(path.read_text())
            document["files"] = {name: FileDigest(**digest) for name, digest in document["files"].items()}
            return cls(**document)
        except OSError as error:
            raise NoModel(f"{path}: {error.strerror}; hint: give a version's directory, or the one above it") from None
        except (ValueError, TypeError, KeyError) as error:
            raise NoModel(f"{path} cannot be read: {error}") from None


def version_directory(root: Path, step: int) -> Path:
    """Where the model of a step lies."""
    return root / f"version-{step:010d}"


def versions(root: Path) -> list[Path]:
    """Directories of versions, newest step first. Raises OSError."""
    if not root.exists():
        return []
    return sorted((path for path in root.iterdir() if _VERSION.match(path.name)), reverse=True)


def find_version(path: Path) -> Path:
    """The version that `path` is, or the current one below it. Raises NoModel."""
    if (path / MODEL).exists() or not (path / CURRENT).exists():
        return path
    name = (path / CURRENT).read_text().strip()
    if not _VERSION.match(name):
        raise NoModel(f"{path / CURRENT} names no version: {name[:80]!r}")
    return path / name
