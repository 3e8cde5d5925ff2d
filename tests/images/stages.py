"""Runs the stages of a Dockerfile in a plain folder: no container engine, the same commands.

COPY, ENV, ARG, WORKDIR and RUN are carried out, absolute paths moved below the folder; what a base image would bring
(python, a shell, uv) is this machine's. Not reproduced: users, other architectures, the base's own files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

IMAGE_FOLDERS = ("/opt/rap", "/src")
"""Folders of an image that the stages write."""


@dataclass
class Stage:
    """A FROM and what follows it."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, keyword: str) -> list[str]:
        """Arguments of all instructions of a kind."""
        return [text for found, text in self.instructions if found == keyword]

    def command(self, keyword: str) -> list[str]:
        """The words of an ENTRYPOINT, CMD or HEALTHCHECK in exec form."""
        words: list[str] = json.loads(re.sub(r"^.*?(?=\[)", "", self.all(keyword)[-1]))
        return words


def stages(dockerfile: Path) -> list[Stage]:
    """The stages of a Dockerfile, in order."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", "")
    found: list[Stage] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base=base, name=name))
        elif found:
            found[-1].instructions.append((keyword, rest.strip()))
    return found


class StageError(Exception):
    """A command of a stage failed: what it was and what it said."""


class PlainFolder:
    """What a stage makes, below `root`."""

    def __init__(self, root: Path, context: Path, *, path: str, arguments: Mapping[str, str]) -> None:
        self.root, self._context = root, context
        # Proxies and certificates of this machine stay; its Python environment does not.
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        self._environment = {**outside, "PATH": path, **arguments}
        self._place = root

    def build(self, stage: Stage) -> None:
        """Carries a stage out. Raises StageError for the first command that fails."""
        for keyword, text in stage.instructions:
            match keyword:
                case "ARG":
                    name, _, default = text.partition("=")
                    self._environment.setdefault(name, default)
                case "ENV":
                    for name, value in re.findall(r"(\w+)=(\S+)", text):
                        self._environment[name] = self.moved(value)
                case "WORKDIR":
                    self._place = Path(self.moved(text))
                    self._place.mkdir(parents=True, exist_ok=True)
                case "COPY" if not text.startswith("--from="):
                    self._copy(text.split())
                case "RUN":
                    self._run(text)

    def moved(self, text: str) -> str:
        """A text with the image's folders as they are here."""
        for folder in IMAGE_FOLDERS:
            text = re.sub(rf"(?<![\w.]){re.escape(folder)}(?=[/\s\"']|$)", f"{self.root}{folder}", text)
        return text

    def size_bytes(self, folder: str) -> int:
        """What files of an image's folder take."""
        return sum(p.stat().st_size for p in Path(self.moved(folder)).rglob("*") if p.is_file() and not p.is_symlink())

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        for source in sources:
            to = self._place / target
            if (self._context / source).is_dir():
                shutil.copytree(self._context / source, to, dirs_exist_ok=True, ignore=ignore)
            else:
                shutil.copy(self._context / source, to)

    def _run(self, text: str) -> None:
        environment = {k: v for k, v in self._environment.items() if k != "UV_NO_CACHE"}  # downloads are shared here
        command = ["sh", "-euc", self.moved(text)]
        done = subprocess.run(command, cwd=self._place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StageError(f"{text}\n{done.stdout}{done.stderr}")
