"""What a kernel can read: a raw column by its name, or a buffer of this program by the node it holds. No memory itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Slot:
    """Something to read: a raw column, or (with `node`) a buffer that holds that node's value."""

    name: str
    node: int | None = None

    def __str__(self) -> str:
        return self.name if self.node is None else f"{self.name}#{self.node}"
