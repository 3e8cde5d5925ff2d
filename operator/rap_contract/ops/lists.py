"""Bases of the ops that compare two lists of ids; no op itself."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType


class Overlap(Op):
    """A number a row from two lists of ids."""

    match: str = Field(min_length=1, max_length=253)
    """Column or feature with the other list."""

    def references(self) -> tuple[str, ...]:
        return (self.match,)

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        other = references[self.match]
        for each in (value, other):
            self.need_list(each)
            self.need_integer(each)
        if other.dtype is not value.dtype:
            raise self.mismatch(f"two lists of one type, {value} here", other, "declare both columns alike")
        nullable = any(each.nullable for each in (value, *references.values()))
        return ValueType(dtype=Dtype.FLOAT32, nullable=nullable)

    def need_scores(self, scores: ValueType) -> None:
        """OpError unless `scores` is list<float32>."""
        if not scores.is_list or scores.dtype is not Dtype.FLOAT32:
            raise self.mismatch("list<float32> as scores", scores, "declare the column as list<float32>")


class Scores(Overlap):
    """A number a row from two lists of ids and the scores of the second."""

    scores: str = Field(min_length=1, max_length=253)
    """Column or feature with a float32 score for each element of `match`."""

    def references(self) -> tuple[str, ...]:
        return (self.match, self.scores)

    def parallel(self) -> Mapping[str, str]:
        return {self.scores: self.match}

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        self.need_scores(references[self.scores])
        return super().output(value, references)
