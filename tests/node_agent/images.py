"""What an image name stands for here: not a file system, but an environment in this machine's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Image:
    """Environment, entry point and working directory that a real image would carry."""

    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    working_dir: str = "/"
    folders: Sequence[Path] = ()
    """What of this machine it consists of: a real image's files lie where no volume of a pod hides them."""


def this_python() -> Image:
    """Return an image whose commands are those of the running virtual environment."""
    return Image(
        environment={"PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}", "HOME": "/root"},
        folders=(Path(sys.base_prefix), Path(sys.prefix), CHECKOUT),
    )


def find_image(images: Mapping[str, Image], name: str) -> Image | None:
    """Return the image of the first pattern that matches `name`, None when there is no such image."""
    return next((image for pattern, image in images.items() if fnmatchcase(name, pattern)), None)
