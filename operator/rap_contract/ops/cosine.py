"""cosine: the angle between two scored lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.lists import Overlap
from rap_contract.types import ValueType


class Cosine(Overlap):
    """Cosine similarity of scores summed per id; 0 when either side has no length; float32."""

    stem: ClassVar[str] = "cosine"
    id_scores: str = Field(min_length=1, max_length=253)
    """Column or feature with a float32 score for each id of the list."""
    match_scores: str = Field(min_length=1, max_length=253)
    """Column or feature with a float32 score for each element of `match`."""

    def references(self) -> tuple[str, ...]:
        return (self.match, self.id_scores, self.match_scores)

    def parallel(self) -> Mapping[str, str]:
        return {self.id_scores: "", self.match_scores: self.match}

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        self.need_scores(references[self.id_scores])
        self.need_scores(references[self.match_scores])
        return super().output(value, references)
