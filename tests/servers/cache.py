"""Where built servers and toolchains are kept between runs: outside the work tree, keyed by version.

An entry is a folder that appears whole or not at all, so an interrupted build is never mistaken for
a finished one, and several test processes that miss the same entry wait for one build.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def say(message: str) -> None:
    """Report progress at once: a build of minutes must not look like a hang."""
    print(f"servers: {message}", flush=True)


def cache_root() -> Path:
    """Folder of all entries: `$RAP_CACHE/servers`, else the XDG cache of this user."""
    explicit = os.environ.get("RAP_CACHE")
    if explicit:
        return Path(explicit).absolute() / "servers"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "rap" / "servers"


def provide(name: str, produce: Callable[[Path], None]) -> Path:
    """Return the entry `name`, calling `produce(folder)` first when it is not there yet."""
    entry = cache_root() / name
    if entry.is_dir():
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with _locked(entry.parent / f".{name}.lock", name):
        if entry.is_dir():
            return entry
        aside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=entry.parent))
        try:
            produce(aside)
            aside.chmod(0o755)  # mkdtemp makes it private, and pods may run as another user
            aside.rename(entry)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return entry


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: another process is making it, waiting for that")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
