"""Hypothesis strategies: an op with its parameters, a value it takes, and its references."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st
from ops.reference import Rows, f32
from rap_contract.ops import OPS, Op
from rap_contract.types import Dtype, ValueType

INTEGERS, FLOATS = ("int32", "int64"), ("float32", "float64")
NUMBERS = (*INTEGERS, *FLOATS)
Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """One application of an op."""

    op: Op
    value: Rows
    references: dict[str, Rows]
    row_ids: list[int]


def type_of(column: Rows) -> ValueType:
    """The static type of rows that may be null."""
    return ValueType(dtype=Dtype(column.dtype), is_list=column.is_list)


def numbers_of(dtype: str) -> st.SearchStrategy[Any]:
    """Numbers of a type with its extremes; small ones often, so that they meet borders and each other."""
    if dtype in INTEGERS:
        low, high = Dtype(dtype).integer_bounds
        return st.one_of(st.integers(-3, 12), st.integers(low, high), st.sampled_from([low, high, 0, -1]))
    width: Literal[32, 64] = 32 if dtype == "float32" else 64
    special = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.0, 1.5, 2.0])
    return st.one_of(st.floats(width=width), special, st.floats(-4, 20, width=width))


WEIGHTS = st.floats(-4, 4, width=32)


@st.composite
def columns(
    draw: Draw, dtypes: tuple[str, ...], is_list: bool, num_rows: int, weights: bool = True, elements: Any = None
) -> Rows:
    """A column after the collapse: rows may be null, lists may be empty and carry weights."""
    dtype = draw(st.sampled_from(dtypes))
    numbers = numbers_of(dtype) if elements is None else elements
    row = st.lists(numbers, max_size=7) if is_list else numbers
    rows = draw(st.lists(st.none() | row if draw(st.booleans()) else row, min_size=num_rows, max_size=num_rows))
    if not is_list or not weights or draw(st.booleans()):
        return Rows(rows, is_list, dtype)
    sizes = [0 if each is None else len(each) for each in rows]
    return Rows(rows, True, dtype, [draw(st.lists(WEIGHTS, min_size=size, max_size=size)) for size in sizes])


@st.composite
def cases(draw: Draw, stem: str) -> Case:
    """The op called `stem` on something it takes."""
    num_rows = draw(st.integers(0, 6))
    row_ids = draw(st.lists(numbers_of("int64"), min_size=num_rows, max_size=num_rows))
    if stem in COMPARING:
        return _comparing(draw, stem, num_rows, row_ids)
    dtypes = TAKES[stem]
    is_list = True if stem in LISTS_ONLY else draw(st.booleans())
    parameters = PARAMETERS[stem](draw)
    if stem == "ngram" and parameters["combine"] == "hash":
        dtypes = INTEGERS
    value = draw(columns(dtypes, is_list, num_rows))
    references: dict[str, Rows] = {}
    if stem == "cartesian":
        references["other"] = draw(columns(INTEGERS, True, num_rows))
    if "offset_column" in parameters:
        offsets = st.integers(-86_400, 86_400)
        references["offset"] = draw(columns(INTEGERS, False, num_rows, elements=offsets))
    return Case(_fitting(draw, stem, parameters, value), value, references, row_ids)


def _fitting(draw: Draw, stem: str, parameters: dict[str, Any], value: Rows) -> Op:
    """The op with parameters that fit the value's type."""
    if stem == "fill_null" and value.dtype in INTEGERS:
        parameters = {"value": draw(numbers_of(value.dtype))}
    if stem == "positive_modulus":
        parameters = {"n": draw(st.integers(1, 10) | st.integers(1, Dtype(value.dtype).integer_bounds[1]))}
    if stem == "clamp":
        number = numbers_of(value.dtype).filter(math.isfinite) if value.dtype in FLOATS else numbers_of(value.dtype)
        lo, hi = sorted((draw(number), draw(number)))
        parameters = {"lo": lo, "hi": hi}
    return OPS[stem].model_validate(parameters)


def _comparing(draw: Draw, stem: str, num_rows: int, row_ids: list[int]) -> Case:
    dtypes = (draw(st.sampled_from(INTEGERS)),)
    ids = st.integers(-2, 4) | numbers_of(dtypes[0])
    value = draw(columns(dtypes, True, num_rows, elements=ids))
    references = {"match": draw(columns(dtypes, True, num_rows, elements=ids))}
    parameters = {"match": "match"}
    if stem.startswith("score"):
        parameters["scores"] = "scores"
        references["scores"] = _beside(draw, references["match"])
    if stem == "cosine":
        parameters |= {"id_scores": "id_scores", "match_scores": "scores"}
        references["id_scores"] = _beside(draw, value)
        references["scores"] = _beside(draw, references["match"])
    return Case(OPS[stem].model_validate(parameters), value, references, row_ids)


def _beside(draw: Draw, ids: Rows) -> Rows:
    """Scores parallel to ids; some of their rows are null."""
    rows = [None if row is None else draw(st.lists(WEIGHTS, min_size=len(row), max_size=len(row))) for row in ids.rows]
    return Rows([None if draw(st.integers(0, 9)) == 0 else row for row in rows], True, "float32")


def _finite(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_infinity=False).map(f32)


def _bucketize(draw: Draw) -> dict[str, Any]:
    border = st.integers(-3, 12).map(float) | _finite(-1e6, 1e6) | st.sampled_from([0.5, 0.1, 1e300, -1e300])
    borders = sorted(draw(st.lists(border, min_size=1, max_size=8)))
    return {"borders": borders, "side": draw(st.sampled_from(["left", "right"]))}


def _onehot(draw: Draw) -> dict[str, Any]:
    low = draw(_finite(-10, 10))
    return {
        "low": low,
        "high": low + draw(st.floats(0.5, 100)),
        "classes": draw(st.integers(1, 9)),
        "dtype": draw(st.sampled_from(["float32", "int64"])),
    }


def _local_hour(draw: Draw) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"offset_column": "offset"}
    return {"offset": draw(st.integers(-86_400, 86_400))}


def _min_max(draw: Draw) -> dict[str, Any]:
    lo = draw(_finite(-100, 100))
    return {"lo": lo, "hi": lo + draw(st.floats(0.5, 100))}


SALTS = st.integers(-(2**63), 2**63 - 1)
PARAMETERS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "fill_null": lambda draw: {"value": draw(_finite(-1e6, 1e6)), "nan": draw(st.booleans())},
    "sigrid_hash": lambda draw: {
        "salt": draw(SALTS),
        "max_value": draw(st.integers(1, 100) | st.integers(1, 2**63 - 1)),
    },
    "positive_modulus": lambda draw: {},
    "firstx": lambda draw: {"n": draw(st.integers(0, 9))},
    "clamp": lambda draw: {},
    "bucketize": _bucketize,
    "logit": lambda draw: {"eps": draw(st.sampled_from([1e-5, 0.01, 0.49]))},
    "boxcox": lambda draw: {"lambda": draw(st.sampled_from([0, 0.5, 1, 2, -1, -0.5, 3.7]))},
    "log": lambda draw: {"min": draw(st.none() | st.floats(1e-6, 100))},
    "log1p": lambda draw: {"min": draw(st.none() | st.floats(-0.5, 100))},
    "onehot": _onehot,
    "ngram": lambda draw: {"n": draw(st.integers(1, 9)), "combine": draw(st.sampled_from(["concat", "hash"]))},
    "map_id": lambda draw: {
        "map": draw(st.lists(numbers_of("int64"), min_size=1, max_size=8)),
        "default": draw(numbers_of("int64")),
    },
    "cartesian": lambda draw: {"with": "other", "max": draw(st.integers(1, 60))},
    "enumerate": lambda draw: {},
    "sample": lambda draw: {"rate": draw(st.floats(0, 1) | st.sampled_from([0.0, 1.0])), "salt": draw(SALTS)},
    "local_hour": _local_hour,
    "standardize": lambda draw: {"mean": draw(_finite(-100, 100)), "std": draw(st.floats(0.01, 100))},
    "min_max": _min_max,
}
COMPARING = {stem for stem in OPS if stem not in PARAMETERS}
LISTS_ONLY = {"firstx", "ngram", "cartesian", "enumerate", "sample"}
TAKES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PARAMETERS, NUMBERS),
    **dict.fromkeys(("sigrid_hash", "positive_modulus", "map_id", "cartesian", "local_hour"), INTEGERS),
    **dict.fromkeys(("logit", "boxcox", "standardize", "min_max"), FLOATS),
}
