"""has_id_overlap: whether two lists share an id."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Overlap


class HasIdOverlap(Overlap):
    """1 if an id is in both lists, else 0; float32."""

    stem: ClassVar[str] = "has_id_overlap"
