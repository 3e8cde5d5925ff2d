"""Ops as steps, by stem: the element function of each op that has one. No op itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rap_contract.types import Dtype, ValueType

from rap_trainer.fusion.ops import (
    boxcox,
    bucketize,
    clamp,
    enumerate,  # noqa: A004  # the op's stem names its file everywhere
    fill_null,
    local_hour,
    log,
    log1p,
    logit,
    map_id,
    min_max,
    onehot,
    positive_modulus,
    sigrid_hash,
    standardize,
)
from rap_trainer.fusion.ops.step import Step


@dataclass(frozen=True, kw_only=True)
class Place:
    """What an encoding may depend on besides the op: its input's type, and for lanes the position asked for."""

    value: ValueType
    position: int | None = None
    counts: bool = True
    """Whether this step counts NaN; a node that several fusions compute counts once."""
    offset_dtype: Dtype | None = None


def _logarithm(encode: Callable[[Any], Step]) -> Callable[[Any, Place], tuple[Step, ...]]:
    """log and log1p take integers too."""

    def encoded(op: Any, place: Place) -> tuple[Step, ...]:
        return (*_as_float(place.value), encode(op))

    return encoded


def _as_float(value: ValueType) -> tuple[Step, ...]:
    return (Step(name="to_float"),) if value.dtype.is_integer else ()


def _enumerate(op: Any, place: Place) -> tuple[Step, ...]:
    del op
    return (enumerate.encode() if place.position is None else Step(name="constant", parameters=(place.position,)),)


ENCODERS: Final[dict[str, Callable[[Any, Place], tuple[Step, ...]]]] = {
    "boxcox": lambda op, _: (boxcox.encode(op),),
    "bucketize": lambda op, place: (bucketize.encode(op, place.value, counts=place.counts),),
    "clamp": lambda op, place: (clamp.encode(op, place.value),),
    "enumerate": _enumerate,
    "fill_null": lambda op, place: (fill_null.encode(op, place.value),),
    "local_hour": lambda op, place: (local_hour.encode(op, place.offset_dtype),),
    "log": _logarithm(log.encode),
    "log1p": _logarithm(log1p.encode),
    "logit": lambda op, _: (logit.encode(op),),
    "map_id": lambda op, _: (map_id.encode(op),),
    "min_max": lambda op, _: (min_max.encode(op),),
    "onehot": lambda op, place: (*_as_float(place.value), onehot.encode(op, place.position)),
    "positive_modulus": lambda op, _: (positive_modulus.encode(op),),
    "sigrid_hash": lambda op, _: (sigrid_hash.encode(op),),
    "standardize": lambda op, _: (standardize.encode(op),),
}
"""Ops with an element function. The others only move elements, or compare lists."""
MOVERS: Final = frozenset({"firstx", "ngram", "sample", "cartesian"})
COMPARISONS: Final = frozenset(
    {
        "cosine",
        "get_max_count",
        "has_id_overlap",
        "id_overlap_count",
        "jaccard",
        "score_max",
        "score_min",
        "score_sum",
    }
)
