"""score_max: greatest score of shared ids."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Scores


class ScoreMax(Scores):
    """Greatest score of those elements of `match` whose id is in the list, 0 without one; float32."""

    stem: ClassVar[str] = "score_max"
