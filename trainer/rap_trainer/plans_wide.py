"""Plan 4: 200 dense and 400 sparse features over lists of mean length 20, with every op."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

ROWS = (1_000, 10_000, 50_000, 100_000)  # dealt to the tables in turn: 400 of dim 128 take 8 GB
NUM_NUMBERS, NUM_LISTS, NUM_WEIGHTED, NUM_TIMES = 160, 300, 60, 20
PAIR_OPS = ("hasIdOverlap", "idOverlapCount", "getMaxCount", "jaccard")
SCORE_OPS = ("scoreSum", "scoreMin", "scoreMax")


def wide_columns() -> dict[str, str]:
    """Declared columns: numbers, lists of ids, lists with weights (and scores), times with their offsets."""
    return {
        "label": "int32",
        f"num_{{0..{NUM_NUMBERS - 1}}}": "float32",
        f"ids_{{0..{NUM_LISTS - 1}}}": "list<int64>",
        f"bag_{{0..{NUM_WEIGHTED - 1}}}": "list<int64>",
        f"weight_bag_{{0..{NUM_WEIGHTED - 1}}}": "list<float32>",
        f"time_{{0..{NUM_TIMES - 1}}}": "int64",
        "tz_offset": "int32",
    }


def wide_features() -> list[Document]:
    """All groups of plan 4."""
    return [*_numbers(), *_comparisons(), *_lists(), *_crosses(), *_scalars()]


def _span(prefix: str, first: int, number: int) -> list[str]:
    return [f"{prefix}_{{{first}..{first + number - 1}}}"]


def _rows(number: int, first: int = 0) -> Document:
    return {"rows": [ROWS[(first + i) % len(ROWS)] for i in range(number)]}


def _fill(value: float) -> Document:
    return {"fillNull": {"value": value}}


def _numbers() -> list[Document]:
    """160 dense features from 160 numbers."""
    standard, bound = {"standardize": {"mean": 1.0, "std": 2.0}}, {"clamp": {"lo": -5, "hi": 5}}
    unit = {"minMax": {"lo": -5, "hi": 5}}
    log1p = [{"fillNull": {"value": 0, "nan": True}}, {"clamp": {"lo": 0, "hi": 1e6}}, {"log1p": {}}]
    logit = [_fill(0), {"minMax": {"lo": 0, "hi": 100}}, {"logit": {"eps": 1e-5}}]
    boxcox = [_fill(1), {"clamp": {"lo": 1e-3, "hi": 1e6}}, {"boxcox": {"lambda": 0.5}}, standard, bound]
    classes = [_fill(0), {"clamp": {"lo": 0, "hi": 15}}, {"onehot": {"low": 0, "high": 16, "classes": 5}}]
    return [
        {"columns": _span("num", 0, 60), "ops": [*log1p, standard, bound, unit]},
        {"columns": _span("num", 60, 40), "ops": [*logit, standard, bound, unit]},
        {"columns": _span("num", 100, 30), "ops": boxcox},
        {"columns": _span("num", 130, 20), "ops": [_fill(1), {"log": {"min": 1e-6}}, standard]},
        {"columns": _span("num", 150, 10), "ops": classes},
    ]


def _comparisons() -> list[Document]:
    """40 dense features from pairs of lists."""
    after = [
        {"fillNull": {"value": 0, "nan": True}},
        {"log1p": {"min": -0.5}},
        {"standardize": {"mean": 0.0, "std": 2.0}},
    ]
    features: list[Document] = []
    for i in range(5):
        bag, other = f"bag_{i}", f"bag_{i + 5}"
        plain = [(op, f"ids_{i}", {"match": f"ids_{i + 5}"}) for op in PAIR_OPS]
        scored = [(op, f"ids_{i}", {"match": bag, "scores": f"weight_{bag}"}) for op in SCORE_OPS]
        cosine = {"match": other, "idScores": f"weight_{bag}", "matchScores": f"weight_{other}"}
        for op, column, parameters in [*plain, *scored, ("cosine", bag, cosine)]:
            chain = [{"firstx": {"count": 100}}] if op in PAIR_OPS else []
            features.append(
                {"name": f"{op}_{i}", "columns": [column], "ops": [*chain, {op: parameters}, *after], "nulls": "skip"}
            )
    return features


def _lists() -> list[Document]:
    """210 sparse features: long lists, and lists with weights."""
    return [
        {
            "columns": _span("ids", 0, 150),
            "ops": [
                _fill(0),
                {"positiveModulus": {"modulus": 2**48}},
                {"clamp": {"lo": 0, "hi": 2**47}},
                {"sample": {"rate": 0.9, "salt": 7}},
                {"firstx": {"count": 64}},
                {"sigridHash": {"salt": 1}},
                {"firstx": {"count": 50}},
            ],
            "table": _rows(150),
        },
        {
            "columns": _span("bag", 0, 60),
            "weights": "weight_{column}",
            "ops": [
                {"sample": {"rate": 0.8}},
                {"firstx": {"count": 40}},
                {"sigridHash": {"salt": 2}},
                {"firstx": {"count": 30}},
            ],
            "nulls": "skip",
            "table": {**_rows(60), "pooling": "sum"},
        },
    ]


def _crosses() -> list[Document]:
    """150 sparse features that change the length of their lists, 30 of them crossed with another list."""
    hashed, head = {"sigridHash": {"salt": 3}}, {"firstx": {"count": 2}}
    classes = {"onehot": {"low": 0, "high": 16, "classes": 8, "dtype": "int64"}}
    bigrams = [
        _fill(0),
        {"firstx": {"count": 20}},
        {"ngram": {"size": 2, "combine": "hash"}},
        hashed,
        {"firstx": {"count": 30}},
    ]
    grams = [_fill(0), head, {"clamp": {"lo": 0, "hi": 16}}, classes, {"ngram": {"size": 4}}, {"firstx": {"count": 8}}]
    mapped = [
        _fill(0),
        {"positiveModulus": {"modulus": 1024}},
        {"mapId": {"map": [255 - i % 256 for i in range(1024)]}},
        {"firstx": {"count": 50}},
    ]
    placed = [_fill(0), {"sample": {"rate": 0.5}}, {"enumerate": {}}, {"clamp": {"lo": 0, "hi": 99}}]
    groups: list[Document] = [
        {"columns": _span("ids", 150, 40), "ops": bigrams, "table": _rows(40)},
        {"columns": _span("ids", 190, 40), "ops": grams, "table": _rows(40)},
        {"columns": _span("ids", 230, 20), "ops": mapped, "table": {"rows": 256}},
        {"columns": _span("ids", 250, 20), "ops": placed, "table": {"rows": 1000}},
    ]
    for i in range(30):
        cross = {"cartesian": {"with": f"ids_{270 + (i + 1) % 30}", "max": 50}}
        ops = [_fill(0), {"firstx": {"count": 5}}, cross, hashed, {"firstx": {"count": 50}}]
        groups.append({"name": f"cross_{i}", "columns": [f"ids_{270 + i}"], "ops": ops, "table": _rows(1, i)})
    return groups


def _scalars() -> list[Document]:
    """40 sparse features from numbers and times."""
    borders = [float(2**i) for i in range(12)]
    hour = [{"localHour": {"offsetColumn": "tz_offset"}}, {"bucketize": {"borders": [6, 12, 18], "side": "right"}}]
    return [
        {
            "name": "bucket_{column}",
            "columns": _span("num", 0, 20),
            "ops": [_fill(0), {"bucketize": {"borders": borders}}],
            "table": {"rows": 1000},
        },
        {
            "columns": _span("time", 0, 10),
            "ops": [_fill(0), *hour],
            "table": {"rows": 1000},
        },
        {
            "columns": _span("time", 10, 10),
            "ops": [_fill(0), {"localHour": {"offset": 3600}}],
            "table": {"rows": 1000},
        },
    ]
