"""get_max_count: how often shared ids occur at most."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Overlap


class GetMaxCount(Overlap):
    """Sum over common ids of max(count in one, count in the other); float32."""

    stem: ClassVar[str] = "get_max_count"
