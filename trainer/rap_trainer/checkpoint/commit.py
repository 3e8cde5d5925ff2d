"""Makes a written checkpoint the newest one, and removes what is no longer kept. File system only."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from rap_trainer.checkpoint.errors import Damaged
from rap_trainer.checkpoint.fence import Claim, holding
from rap_trainer.checkpoint.layout import (
    COMMIT,
    REPLACED,
    WRITING,
    Manifest,
    checkpoints,
    read_manifest,
    step_directory,
)

log = logging.getLogger(__name__)


def commit(root: Path, aside: Path, manifest: Manifest, *, claim: Claim, keep: int) -> None:
    """Writes COMMIT, renames the directory into place and prunes. Raises Fenced, OSError."""
    with (aside / COMMIT).open("w") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(aside)
    target = step_directory(root, manifest.step)
    with holding(root, claim):
        if target.exists():  # damaged, or of an attempt whose rows were trained again
            target.rename(_unused(root, target.name))
        aside.rename(target)
        _sync_directory(root)
    prune(root, manifest, keep=keep)


def prune(root: Path, newest: Manifest, *, keep: int) -> None:
    """Removes all but the newest `keep` complete checkpoints of this job, and damaged ones older than `newest`."""
    kept = 0
    for directory in checkpoints(root):
        try:
            manifest = read_manifest(directory)
        except Damaged:
            stale = directory < step_directory(root, newest.step)
        else:
            of_this_run = manifest.job == newest.job and manifest.step <= newest.step
            stale = not of_this_run or kept >= keep
            kept += of_this_run
        if stale:
            discard(directory)
    for leftover in root.glob(f"{REPLACED}*"):
        discard(leftover)


def discard(directory: Path) -> None:
    """Removes a directory; under another name first, so that no reader ever sees half of it. Never raises."""
    try:
        doomed = directory
        if not directory.name.startswith("."):
            doomed = directory.rename(_unused(directory.parent, directory.name))
        shutil.rmtree(doomed)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("cannot remove %s: %s", directory, error)


def clear_unfinished(root: Path) -> None:
    """Removes what earlier attempts were writing when they ended; the caller owns the directory."""
    for leftover in [*root.glob(f"{WRITING}*"), *root.glob(f"{REPLACED}*")]:
        discard(leftover)


def _unused(root: Path, name: str) -> Path:
    candidates = (root / f"{REPLACED}{name}-{i}" for i in range(1_000_000))
    return next(path for path in candidates if not path.exists())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
