"""id_overlap_count: how many ids two lists share."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Overlap


class IdOverlapCount(Overlap):
    """Sum over ids of min(count in one, count in the other); float32."""

    stem: ClassVar[str] = "id_overlap_count"
