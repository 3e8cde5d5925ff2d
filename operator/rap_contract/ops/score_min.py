"""score_min: least score of shared ids."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Scores


class ScoreMin(Scores):
    """Least score of those elements of `match` whose id is in the list, 0 without one; float32."""

    stem: ClassVar[str] = "score_min"
