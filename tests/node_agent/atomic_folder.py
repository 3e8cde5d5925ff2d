"""A folder whose files change all at once, as the kubelet writes ConfigMap volumes.

Every name is a link to `..data/name`, and `..data` is a link to a folder of one version: replacing
that one link is a rename, so a reader sees the old set or the new set and never a mixture.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

_versions = itertools.count(1)


def write_all(folder: Path, files: Mapping[str, bytes], *, mode: int = 0o644) -> bool:
    """Make `folder` hold exactly `files` (relative path to content); False when it did already."""
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / "..data"
    if current.exists() and _content(current) == dict(files):
        return False
    version = folder / f"..version_{next(_versions)}"
    for name, content in files.items():
        path = version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    version.mkdir(exist_ok=True)
    replaced = current.resolve() if current.exists() else None
    link = folder / "..data_tmp"
    link.symlink_to(version.name)
    link.rename(current)
    _link_names(folder, {name.split("/", 1)[0] for name in files})
    if replaced:
        shutil.rmtree(replaced, ignore_errors=True)
    return True


def _content(version: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(version.resolve())): path.read_bytes()
        for path in version.resolve().rglob("*")
        if path.is_file()
    }


def _link_names(folder: Path, names: set[str]) -> None:
    present = {entry.name for entry in folder.iterdir() if not entry.name.startswith("..")}
    for name in names - present:
        (folder / name).symlink_to(f"..data/{name}")
    for name in present - names:
        (folder / name).unlink()
