"""map_id: map[id]; `default` for an id outside the map."""

from __future__ import annotations

import torch
from rap_contract.ops.map_id import MapId

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: MapId, value: Value, references: References, context: Context) -> Value:
    """Mapped ids, int64."""
    del references
    ids_N = elements(value).to(torch.int64)
    map_K = context.constant(op, "map", ids_N, lambda: op.map)
    inside_N = (ids_N >= 0) & (ids_N < map_K.numel())
    return value.with_values(map_K[ids_N.masked_fill(~inside_N, 0)].masked_fill_(~inside_N, op.default))
