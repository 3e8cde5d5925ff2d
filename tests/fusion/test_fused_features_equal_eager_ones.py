"""Every op through the fused kernels against its eager twin: bit-equal integers, floats within tolerance.

On a CPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion.fusion_jobs import check, dense, sparse

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
HASH: dict[str, Any] = {"sigridHash": {"salt": 3}}
FILL: dict[str, Any] = {"fillNull": {"value": 0}}
FILLF: dict[str, Any] = {"fillNull": {"value": 0.25, "nan": True}}

NUMBERS = [
    dense("logit", "f32", FILLF, {"logit": {"eps": 1e-5}}),
    dense("boxcox", "f32", FILL, {"boxcox": {"lambda": 0.5}}),
    dense("boxcox_log", "f32", FILL, {"boxcox": {"lambda": 0}}),
    dense("log", "f32", FILL, {"log": {"min": 0.5}}),
    dense("log_int", "i64", FILL, {"log": {"min": 1}}),
    dense("log1p", "f32", FILL, {"clamp": {"lo": 0, "hi": 100}}, {"log1p": {}}),
    dense("standardize", "f32", FILL, {"standardize": {"mean": 1.5, "std": 3}}),
    dense("min_max", "f64", FILL, {"minMax": {"lo": -1, "hi": 4}}),
    dense("raw_double", "f64", FILL),
    dense("raw_int", "i32", FILL),
    dense("onehot", "f32", FILL, {"onehot": {"low": 0, "high": 16, "classes": 5}}),
    dense("onehot_first", "i32", FILL, {"onehot": {"low": 0, "high": 16, "classes": 5}}, {"firstx": {"n": 1}}),
    sparse("hash", "i32", FILL, HASH),
    sparse("hash_big", "i64", FILL, {"sigridHash": {"maxValue": 2**62 + 7}}),
    sparse("modulus", "i64", FILL, {"positiveModulus": {"n": 7}}, table={"rows": 7, "dim": 4}),
    sparse("clamp", "i64", FILL, {"clamp": {"lo": 0, "hi": 16}}, table={"rows": 17, "dim": 4}),
    sparse("bucket", "f32", FILL, {"bucketize": {"borders": [0.5, 1.0, 1.0, 1.5]}}),
    sparse("bucket_right", "f64", FILL, {"bucketize": {"borders": [0.5, 1.0, 1.5], "side": "right"}}),
    sparse("bucket_int", "i64", FILL, {"bucketize": {"borders": [-0.5, 1, 2, 2, 3.5, 1e300]}}),
    sparse("bucket_int_right", "i32", FILL, {"bucketize": {"borders": [-1e300, 1, 2, 2.5], "side": "right"}}),
    sparse("map", "i64", FILL, {"mapId": {"map": [5, 4, 3, 2], "default": 9}}),
    sparse("hour", "i64", FILL, {"localHour": {"offset": -3600}}, table={"rows": 24, "dim": 4}),
    sparse("hour_tz", "i64", FILL, {"localHour": {"offsetColumn": "tz"}}),
    sparse(
        "grams",
        "i32",
        FILL,
        {"onehot": {"low": 0, "high": 8, "classes": 4, "dtype": "int64"}},
        {"ngram": {"n": 3}},
        {"enumerate": {}},
        {"firstx": {"n": 5}},
        HASH,
    ),
]
NULLABLE_NUMBERS = [
    dense("late_fill", "f32", {"standardize": {"mean": 1, "std": 2}}, FILL),
    sparse("null_is_empty", "i64", HASH),
    sparse("null_hour", "i32", {"localHour": {"offsetColumn": "tz"}}),
    sparse(
        "null_onehot", "f32", {"onehot": {"low": 0, "high": 8, "classes": 3, "dtype": "int64"}}, {"ngram": {"n": 2}}
    ),
    sparse("null_filled_list", "i64", {"onehot": {"low": 0, "high": 8, "classes": 3, "dtype": "int64"}}, FILL, HASH),
    sparse("plain", "i32", FILL, HASH),
]
NAN_TOO = {"fillNull": {"value": 0, "nan": True}}
LISTS = [
    sparse("hash", "ids", HASH),
    sparse("hash32", "ids32", FILL, HASH),
    sparse("filled_first", "ids", FILL, HASH, {"firstx": {"n": 2}}),
    sparse("none", "ids", HASH, {"firstx": {"n": 0}}),
    sparse("ngram", "ids", HASH, {"ngram": {"n": 3}}, {"firstx": {"n": 7}}),
    sparse("windows", "ids", HASH, {"ngram": {"n": 3, "combine": "hash"}}, HASH),
    sparse("two_changes", "ids", HASH, {"ngram": {"n": 2}}, {"ngram": {"n": 3}}, HASH),
    sparse(
        "onehot",
        "floats",
        {"onehot": {"low": 0, "high": 8, "classes": 3, "dtype": "int64"}},
        {"clamp": {"lo": 0, "hi": 1}},
    ),
    sparse("bucket", "floats", {"bucketize": {"borders": [0.5, 1.0, 1.5]}}),
    sparse("bucket64", "doubles", {"log1p": {"min": 0}}, {"bucketize": {"borders": [0.5, 1.0, 1.5]}}),
    sparse("sample", "ids", HASH, {"sample": {"rate": 0.5, "salt": 4}}),
    sparse(
        "sample_later", "ids", {"firstx": {"n": 5}}, {"sample": {"rate": 0.7}}, {"enumerate": {}}, {"firstx": {"n": 2}}
    ),
    sparse("enumerate_sample", "ids", {"enumerate": {}}, {"sample": {"rate": 0.7}}),
    sparse("sample_first", "ids", FILL, {"sample": {"rate": 0.7, "salt": 5}}, {"firstx": {"n": 3}}, HASH),
    sparse("first_sample_first", "more", {"firstx": {"n": 6}}, {"sample": {"rate": 0.8}}, {"firstx": {"n": 2}}),
    sparse("sample_grams", "more", {"sample": {"rate": 0.6}}, {"ngram": {"n": 2}}, HASH),
    sparse("enumerate", "ids32", {"enumerate": {}}),
    sparse("hour", "ids", {"localHour": {"offset": 7200}}),
    sparse("hour_tz", "ids", {"localHour": {"offsetColumn": "tz"}}),
    sparse("map", "ids", {"mapId": {"map": [5, 4, 3, 2], "default": 9}}),
    sparse("pairs", "few", {"cartesian": {"with": "more", "max": 11}}, HASH),
    sparse("pairs_of_computed", "few", HASH, {"cartesian": {"with": "windows", "max": 11}}, HASH),
    sparse("scalar", "i64", FILL, HASH),
]
SKIPPING = [{**feature, "nulls": "skip"} for feature in LISTS]
COMPARED = [
    dense(stem, "ids", {stem: {"match": "more"}}, FILL) for stem in ("hasIdOverlap", "idOverlapCount", "getMaxCount")
] + [
    dense("jaccard", "ids", {"jaccard": {"match": "more"}}, NAN_TOO),
    dense("cosine", "ids", {"cosine": {"match": "more", "idScores": "scores", "matchScores": "more_scores"}}, FILL),
    *(
        dense(stem, "ids", {stem: {"match": "more", "scores": "more_scores"}}, FILL)
        for stem in ("scoreSum", "scoreMin", "scoreMax")
    ),
    dense("computed", "ids", {"firstx": {"n": 3}}, {"idOverlapCount": {"match": "few"}}, {"log1p": {}}, FILL),
    dense("shortened", "ids", {"firstx": {"n": 3}}, {"firstx": {"n": 2}}, {"getMaxCount": {"match": "more"}}, FILL),
    {**dense("skipping", "ids", {"firstx": {"n": 3}}, {"jaccard": {"match": "more"}}, NAN_TOO), "nulls": "skip"},
    sparse("bucketed", "ids", {"idOverlapCount": {"match": "more"}}, {"bucketize": {"borders": [0.5, 1.5]}}),
]
WEIGHTED = [
    sparse("kept", "ids", HASH, weights="scores"),
    sparse("first", "ids", HASH, {"firstx": {"n": 2}}, weights="scores"),
    sparse("grams", "ids", {"ngram": {"n": 2}}, HASH, weights="scores"),
    sparse("windows", "ids", {"ngram": {"n": 2, "combine": "hash"}}, HASH, weights="scores"),
    sparse("sampled", "ids", {"sample": {"rate": 0.5}}, HASH, weights="scores"),
    sparse("sampled_first", "ids", {"sample": {"rate": 0.7}}, {"firstx": {"n": 2}}, HASH, weights="scores"),
    sparse("twice", "ids", {"ngram": {"n": 2}}, {"ngram": {"n": 2, "combine": "hash"}}, HASH, weights="scores"),
    sparse("pairs", "few", {"cartesian": {"with": "kept", "max": 50}}, HASH),
    sparse("classes", "ids", {"onehot": {"low": 0, "high": 8, "classes": 3, "dtype": "int64"}}, weights="scores"),
    sparse("bare", "more", HASH),
    sparse("scalar", "i64", FILL, HASH),
]
JOBS = {
    "numbers": (NUMBERS, ()),
    "numbers with nulls": (NUMBERS, ("f32", "f64", "i32", "i64")),
    "nulls to the end": (NULLABLE_NUMBERS, ("f32", "i32", "i64", "tz")),
    "lists": (LISTS, ()),
    "lists with nulls": (LISTS, ("ids", "ids32", "more", "few", "floats", "tz")),
    "lists that skip nulls": (SKIPPING, ("ids", "ids32", "more", "few", "floats", "tz")),
    "comparisons": (COMPARED, ()),
    "comparisons with nulls": (COMPARED, ("ids", "more", "scores", "more_scores")),
    "weights": (WEIGHTED, ()),
    "weights with nulls": (WEIGHTED, ("ids", "scores", "more", "few")),
}


@pytest.mark.parametrize(("features", "nulls"), JOBS.values(), ids=JOBS)
def test_a_fused_job_gives_what_the_eager_one_gives(features: list[dict[str, Any]], nulls: tuple[str, ...]) -> None:
    check(features, nulls=nulls)


@pytest.mark.gpu
@pytest.mark.parametrize(("features", "nulls"), JOBS.values(), ids=JOBS)
def test_a_fused_job_gives_what_the_eager_one_gives_on_a_gpu(
    features: list[dict[str, Any]], nulls: tuple[str, ...]
) -> None:
    assert torch.cuda.is_available()
    check(features, nulls=nulls, device="cuda")
