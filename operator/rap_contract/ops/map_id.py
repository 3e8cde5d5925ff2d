"""map_id: ids replaced by a given mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import Dtype, ValueType

Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class MapId(Op):
    """map[id] as int64; an id outside the map, a negative one too, becomes `default`."""

    stem: ClassVar[str] = "map_id"
    map: Annotated[list[Id], Field(min_length=1, max_length=1_000_000)]
    """What ids 0, 1, 2, ... become."""
    default: Id = 0
    """What all other ids become."""

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        del references
        self.need_integer(value)
        return value.with_(
            dtype=Dtype.INT64, low=min(min(self.map), self.default), high=max(max(self.map), self.default)
        )
