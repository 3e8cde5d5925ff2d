"""jaccard: how alike two lists are."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Overlap


class Jaccard(Overlap):
    """c / (len a + len b - c), c = idOverlapCount; NaN when both lists are empty; float32."""

    stem: ClassVar[str] = "jaccard"
