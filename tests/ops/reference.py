"""Every op as slow, obvious Python over rows: what the vectorised twins are compared with.

A row of a number column is a number or None; a row of a list column is a list or None. Before the
collapse a list may hold None. float32 results are rounded once, at the end of an op.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rap_contract.ops import Op

MASK = 2**64 - 1
Row = Any


@dataclass(frozen=True)
class Rows:
    """A column as Python values."""

    rows: list[Row]
    is_list: bool
    dtype: str
    weights: list[list[float]] | None = None
    """Parallel to the lists; [] for a null row."""


def f32(number: float) -> float:
    """The nearest float32; infinite where it overflows."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def rounder(dtype: str) -> Callable[[float], float]:
    return f32 if dtype == "float32" else float


def signed(word: int) -> int:
    return (word + 2**63) % 2**64 - 2**63


def twang_mix64(k: int) -> int:
    k &= MASK
    k = (~k + (k << 21)) & MASK
    k ^= k >> 24
    k = (k + (k << 3) + (k << 8)) & MASK
    k ^= k >> 14
    k = (k + (k << 2) + (k << 4)) & MASK
    k ^= k >> 28
    return (k + (k << 31)) & MASK


def hash_128_to_64(u: int, low: int) -> int:
    k = 0x9DDFEA08EB382D69
    u, low = u & MASK, low & MASK
    a = ((low ^ u) * k) & MASK
    a ^= a >> 47
    b = ((u ^ a) * k) & MASK
    b ^= b >> 47
    return (b * k) & MASK


def collapse(value: Rows, mode: str, partner: Rows | None = None) -> Rows:
    """Null elements make their row null, or are absent."""
    rows: list[Row] = []
    weights: list[list[float]] = []
    for i, row in enumerate(value.rows):
        beside = row if partner is None else partner.rows[i]
        keep = [j for j, x in enumerate(row) if x is not None and beside[j] is not None]
        null = mode == "propagate" and len(keep) < len(row)
        rows.append(None if null else [row[j] for j in keep])
        weights.append([] if null or value.weights is None else [value.weights[i][j] for j in keep])
    return replace(value, rows=rows, weights=None if value.weights is None else weights)


def each(value: Rows, dtype: str, function: Callable[[Any], Any]) -> Rows:
    """`function` applied to every number that is not null."""
    if value.is_list:
        rows = [None if row is None else [function(x) for x in row] for row in value.rows]
    else:
        rows = [None if x is None else function(x) for x in value.rows]
    return replace(value, rows=rows, dtype=dtype)


def pick(value: Rows, indexes: Callable[[int, list[Any]], list[int]]) -> Rows:
    """Each list made of some of its elements, by index, weights with them."""
    chosen = [None if row is None else indexes(i, row) for i, row in enumerate(value.rows)]
    rows = [None if some is None else [value.rows[i][j] for j in some] for i, some in enumerate(chosen)]
    weights = None
    if value.weights is not None:
        weights = [[] if some is None else [value.weights[i][j] for j in some] for i, some in enumerate(chosen)]
    return replace(value, rows=rows, weights=weights)


def _fill_null(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    filler = rounder(value.dtype)(op.value) if value.dtype.startswith("float") else int(op.value)

    def fill(x: Any) -> Any:
        return filler if x is None or (op.nan and math.isnan(x)) else x

    if not value.is_list:
        return replace(value, rows=[fill(x) for x in value.rows])
    rows = [[filler] if row is None else [fill(x) for x in row] for row in value.rows]
    weights = value.weights
    if weights is not None:
        weights = [[1.0] if row is None else w for row, w in zip(value.rows, weights, strict=True)]
    return replace(value, rows=rows, weights=weights)


def _sigrid_hash(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    return each(value, "int64", lambda x: signed(hash_128_to_64(op.salt, twang_mix64(x))) % op.max_value)


def _bucketize(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    borders = [f32(b) for b in op.borders] if value.dtype == "float32" else op.borders

    def index(x: Any) -> int:
        if x != x:
            return 0
        if op.side == "right":
            return sum(bool(border <= x) for border in borders)
        i = sum(bool(border < x) for border in borders)
        return i + 1 if i < len(borders) - 1 and x >= borders[i + 1] else i

    return each(value, "int32", index)


def _clamp(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    if not value.dtype.startswith("float"):
        return each(value, value.dtype, lambda x: min(max(x, int(op.lo)), int(op.hi)))
    lo, hi = (rounder(value.dtype)(bound) for bound in (op.lo, op.hi))
    return each(value, value.dtype, lambda x: x if math.isnan(x) else min(max(x, lo), hi))


def _logit(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    to = rounder(value.dtype)
    lo, hi = to(op.eps), to(1 - op.eps)

    def logit(x: float) -> float:
        if math.isnan(x):
            return x
        x = min(max(x, lo), hi)
        return to(math.log(x / (1 - x)))

    return each(value, value.dtype, logit)


def _boxcox(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    to = rounder(value.dtype)

    def boxcox(x: float) -> float:
        if not x > 0:
            return x
        if op.lambda_ == 0:
            return to(math.log(x))
        try:
            return to((x**op.lambda_ - 1) / op.lambda_)
        except OverflowError:
            return math.copysign(math.inf, op.lambda_)

    return each(value, value.dtype, boxcox)


def _logarithm(shift: float) -> Callable[[Any, Rows, Mapping[str, Rows], list[int]], Rows]:
    def logarithm(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
        dtype = value.dtype if value.dtype.startswith("float") else "float32"
        to = rounder(dtype)

        def log(x: float) -> float:
            x = to(x)
            if op.min is not None and not math.isnan(x):
                x = max(x, to(op.min))
            if math.isnan(x) or x + shift < 0:
                return math.nan
            if x + shift == 0 and (shift == 0 or x == -1):
                return -math.inf
            return to(math.log1p(x) if shift else math.log(x))

        return each(value, dtype, log)

    return logarithm


def _onehot(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    to = rounder(value.dtype) if value.dtype == "float64" else f32
    low, step = to(op.low), to((op.high - op.low) / op.classes)

    def ones(x: Any) -> list[Any]:
        place = to(to(to(x) - low) / step)
        index = math.trunc(place) if math.isfinite(place) else -1
        index = index if 0 <= index < op.classes else 0
        return [(1 if j == index else 0) for j in range(op.classes)]

    if value.is_list:
        rows = [None if row is None else [one for x in row for one in ones(x)] for row in value.rows]
    else:
        rows = [None if x is None else ones(x) for x in value.rows]
    weights = value.weights
    if weights is not None:
        weights = [[w for w in row for _ in range(op.classes)] for row in weights]
    return Rows(rows, True, op.dtype, weights)


def _ngram(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    def windows(row: list[Any]) -> list[list[int]]:
        m = min(op.n, len(row))
        return [list(range(start, start + m)) for start in range(len(row) - m + 1)] if row else []

    if op.combine == "concat":
        return pick(value, lambda i, row: [j for window in windows(row) for j in window])
    rows: list[Row] = []
    weights: list[list[float]] = []
    for i, row in enumerate(value.rows):
        found = [] if row is None else windows(row)
        hashes = []
        for window in found:
            h = row[window[0]]
            for j in window[1:]:
                h = signed(hash_128_to_64(h, row[j]))
            hashes.append(h)
        rows.append(None if row is None else hashes)
        if value.weights is not None:
            weights.append([math.prod(value.weights[i][j] for j in window) for window in found])
    return Rows(rows, True, "int64", None if value.weights is None else weights)


def _map_id(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    return each(value, "int64", lambda x: op.map[x] if 0 <= x < len(op.map) else op.default)


def _cartesian(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    other = refs[op.with_]
    rows: list[Row] = []
    weights: list[list[float]] = []
    for i, (first, second) in enumerate(zip(value.rows, other.rows, strict=True)):
        if first is None or second is None:
            rows.append(None)
            weights.append([])
            continue
        pairs = [(j, k) for j in range(len(first)) for k in range(len(second))][: op.max]
        rows.append([signed(hash_128_to_64(first[j], second[k])) for j, k in pairs])
        left = value.weights[i] if value.weights is not None else [1.0] * len(first)
        right = other.weights[i] if other.weights is not None else [1.0] * len(second)
        weights.append([left[j] * right[k] for j, k in pairs])
    weighted = value.weights is not None or other.weights is not None
    return Rows(rows, True, "int64", weights if weighted else None)


def _enumerate(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    return replace(value, rows=[None if row is None else list(range(len(row))) for row in value.rows], dtype="int64")


def _sample(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    def kept(i: int, row: list[Any]) -> list[int]:
        row_hash = hash_128_to_64(op.salt, twang_mix64(row_ids[i]))
        shares = [hash_128_to_64(row_hash, twang_mix64(j)) >> 11 for j in range(len(row))]
        return [j for j, share in enumerate(shares) if share < math.ceil(op.rate * 2**53)]

    return pick(value, kept)


def _local_hour(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
    offsets = [op.offset or 0] * len(value.rows) if op.offset_column is None else refs[op.offset_column].rows
    rows: list[Row] = []
    for row, offset in zip(value.rows, offsets, strict=True):
        if row is None or offset is None:
            rows.append(None)
        elif value.is_list:
            rows.append([(t + offset) // 3600 % 24 for t in row])
        else:
            rows.append((row + offset) // 3600 % 24)
    weights = value.weights
    if weights is not None:
        weights = [[] if row is None else w for row, w in zip(rows, weights, strict=True)]
    return replace(value, rows=rows, dtype="int32", weights=weights)


def _scaled(shift: str, scale: Callable[[Any], float]) -> Callable[[Any, Rows, Mapping[str, Rows], list[int]], Rows]:
    def scaled(op: Any, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
        to = rounder(value.dtype)
        return each(value, value.dtype, lambda x: to(to(x - to(getattr(op, shift))) / to(scale(op))))

    return scaled


def _compared(function: Callable[..., float]) -> Callable[[Any, Rows, Mapping[str, Rows], list[int]], Rows]:
    """An op on two lists; `function` gets the op's lists in the order of its references."""

    def compared(op: Op, value: Rows, refs: Mapping[str, Rows], row_ids: list[int]) -> Rows:
        columns = [value.rows, *(refs[name].rows for name in op.references())]
        rows = [None if None in lists else f32(function(*lists)) for lists in zip(*columns, strict=True)]
        return Rows(rows, False, "float32")

    return compared


def _overlap(first: list[int], second: list[int]) -> int:
    a, b = Counter(first), Counter(second)
    return sum(min(a[x], b[x]) for x in a)


def _max_count(first: list[int], second: list[int]) -> int:
    a, b = Counter(first), Counter(second)
    return sum(max(a[x], b[x]) for x in a if x in b)


def _jaccard(first: list[int], second: list[int]) -> float:
    union = len(first) + len(second) - _overlap(first, second)
    return _overlap(first, second) / union if union else math.nan


def _cosine(first: list[int], second: list[int], first_scores: list[float], second_scores: list[float]) -> float:
    def summed(ids: list[int], scores: list[float]) -> dict[int, float]:
        total: dict[int, float] = {}
        for x, score in zip(ids, scores, strict=True):
            total[x] = total.get(x, 0.0) + score
        return total

    a, b = summed(first, first_scores), summed(second, second_scores)
    norm = math.sqrt(sum(x * x for x in a.values())) * math.sqrt(sum(x * x for x in b.values()))
    return sum(a[x] * b[x] for x in a if x in b) / norm if norm else 0.0


def _common_scores(first: list[int], second: list[int], scores: list[float]) -> list[float]:
    return [score for x, score in zip(second, scores, strict=True) if x in first]


REFERENCE: dict[str, Callable[[Any, Rows, Mapping[str, Rows], list[int]], Rows]] = {
    "fill_null": _fill_null,
    "sigrid_hash": _sigrid_hash,
    "positive_modulus": lambda op, value, refs, ids: each(value, value.dtype, lambda x: x % op.n),
    "firstx": lambda op, value, refs, ids: pick(value, lambda i, row: list(range(min(op.n, len(row))))),
    "clamp": _clamp,
    "bucketize": _bucketize,
    "logit": _logit,
    "boxcox": _boxcox,
    "log": _logarithm(0),
    "log1p": _logarithm(1),
    "onehot": _onehot,
    "ngram": _ngram,
    "map_id": _map_id,
    "cartesian": _cartesian,
    "enumerate": _enumerate,
    "sample": _sample,
    "local_hour": _local_hour,
    "standardize": _scaled("mean", lambda op: op.std),
    "min_max": _scaled("lo", lambda op: op.hi - op.lo),
    "has_id_overlap": _compared(lambda a, b: float(bool(set(a) & set(b)))),
    "id_overlap_count": _compared(_overlap),
    "get_max_count": _compared(_max_count),
    "jaccard": _compared(_jaccard),
    "cosine": _compared(_cosine),
    "score_sum": _compared(lambda a, b, scores: math.fsum(_common_scores(a, b, scores))),
    "score_min": _compared(lambda a, b, scores: min(_common_scores(a, b, scores), default=0.0)),
    "score_max": _compared(lambda a, b, scores: max(_common_scores(a, b, scores), default=0.0)),
}
