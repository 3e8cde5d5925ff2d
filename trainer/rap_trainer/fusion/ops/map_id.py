# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""map_id: map[x], or the default where x is outside the map."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.map_id import MapId

from rap_trainer.fusion.ops.step import Step


def encode(op: MapId) -> Step:
    """The op as a step: (length, default, place of the map in the pool)."""
    return Step(name="map_id", parameters=(len(op.map), op.default, 0), ints=tuple(op.map), pool_at=2)


@triton.jit
def map_id(x, step, ints):
    """int64 -> int64."""
    default = tl.load(step + 2)
    inside = (x >= 0) & (x < tl.load(step + 1))
    mapped = tl.load(ints + tl.load(step + 3) + x, mask=inside, other=0)
    return tl.where(inside, mapped, default)
