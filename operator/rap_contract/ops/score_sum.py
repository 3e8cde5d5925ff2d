"""score_sum: sum of the scores of shared ids."""

from __future__ import annotations

from typing import ClassVar

from rap_contract.ops.lists import Scores


class ScoreSum(Scores):
    """Sum of the scores of those elements of `match` whose id is in the list, each once; float32."""

    stem: ClassVar[str] = "score_sum"
