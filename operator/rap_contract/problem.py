"""One thing wrong with a document: where, what, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

Path = tuple[str | int, ...]


def format_path(path: Path) -> str:
    """`("spec", "features", 2, "ops")` as `spec.features[2].ops`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(document)"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A fault of a document, with its place. `line` counts from 1; None when unknown."""

    path: Path
    message: str
    hint: str = ""
    value: str = ""
    line: int | None = None

    def with_line(self, line: int | None) -> Problem:
        return replace(self, line=line)

    def __str__(self) -> str:
        place = format_path(self.path) + (f" (line {self.line})" if self.line else "")
        value = f", got {self.value}" if self.value else ""
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{place}: {self.message}{value}{hint}"


class InvalidDocument(ValueError):
    """Everything that is wrong with a document, all at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))
