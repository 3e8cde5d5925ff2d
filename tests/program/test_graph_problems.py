"""Everything that can be wrong between a job's features, each with its YAML path and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from program.small_job import COLUMNS, DENSE, FILL, SPARSE, places, problems_of

TABLE = {"rows": 100, "dim": 8}
HASH = {"sigridHash": {"salt": 1}}


def one(*ops: Any, column: str = "int_0", **fields: Any) -> dict[str, Any]:
    return {"columns": [column], "name": "it", "ops": list(ops), **fields}


def with_others(feature: dict[str, Any]) -> list[dict[str, Any]]:
    """The feature third, after a dense and a sparse one."""
    return [DENSE, SPARSE, feature]


CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "unknown column",
        one(FILL, column="int_9"),
        "spec.features[2].columns",
        "unknown column int_9",
        "did you mean int_",
    ),
    ("backward range", one(FILL, column="int_{3..1}"), "spec.features[2].columns[0]", "runs backwards", ""),
    (
        "wrong type",
        one(FILL, {"logit": {"eps": 0.1}}, column="count"),
        "spec.features[2].ops[1].logit",
        "column count: logit takes float32 or float64, this is int64",
        "log1p",
    ),
    (
        "list for a scalar",
        one({"firstx": {"count": 1}}),
        "spec.features[2].ops[0].firstx",
        "takes a list, this is float32",
        "declare the column as list<float32>",
    ),
    (
        "float for a hash",
        one(FILL, HASH, table=TABLE),
        "spec.features[2].ops[1].sigridHash",
        "takes int32 or int64, this is float32",
        "bucketize",
    ),
    (
        "hash without a table",
        one(FILL, HASH, column="count"),
        "spec.features[2].ops[1].sigridHash",
        "no maxValue and its feature no table",
        "give maxValue",
    ),
    (
        "sparse without a table",
        one(column="cat_0"),
        "spec.features[2].table",
        "list<int64> has no table",
        "give `table`",
    ),
    (
        "dense list of any length",
        one(FILL, column="scores_0"),
        "spec.features[2].table",
        "list<float32> has no table",
        "fixed length",
    ),
    (
        "dense null",
        one({"log1p": {}}),
        "spec.features[2].ops",
        "a dense feature may not be null",
        "fillNull: {value: 0}",
    ),
    (
        "filler that does not fit",
        one({"fillNull": {"value": 2**40}}, HASH, column="small", table=TABLE),
        "spec.features[2].ops[0].fillNull",
        "does not fit list<int32>",
        "from -2147483648",
    ),
    (
        "fraction for an integer",
        one({"fillNull": {"value": 0.5}}, column="count"),
        "spec.features[2].ops[0].fillNull",
        "0.5 of fillNull does not fit int64",
        "whole number",
    ),
    (
        "nan of an integer",
        one({"fillNull": {"value": 0, "nan": True}}, column="count"),
        "spec.features[2].ops[0].fillNull",
        "needs a float column",
        "remove `nan`",
    ),
    (
        "clamp beyond the type",
        one(FILL, {"clamp": {"lo": 0, "hi": 2**33}}, column="small", table=TABLE),
        "spec.features[2].ops[1].clamp",
        "hi 8589934592 does not fit list<int32>",
        "give a number from",
    ),
    (
        "ids not proven",
        one(FILL, column="cat_0", table=TABLE),
        "spec.features[2].table",
        "not proven to be within the table's 100 rows",
        "outOfRange: zero",
    ),
    (
        "ids too large",
        one({"sigridHash": {"maxValue": 101}}, column="cat_0", table=TABLE),
        "spec.features[2].table.rows",
        "ids go from 0 to 100, the table has 100 rows",
        "raise `rows`",
    ),
    (
        "ids below 0",
        one({"clamp": {"lo": -1, "hi": 5}}, column="cat_0", table=TABLE),
        "spec.features[2].table.rows",
        "ids go from -1 to 5",
        "",
    ),
    (
        "float ids",
        one(column="scores_0", table=TABLE),
        "spec.features[2].table",
        "ids of a table are integers, this is list<float32>",
        "bucketize",
    ),
    (
        "rows per column",
        {"columns": ["cat_{0..1}"], "name": "x_{column}", "ops": [HASH], "table": {"rows": [1, 2, 3], "dim": 8}},
        "spec.features[2].table.rows",
        "3 numbers of rows for 2 columns",
        "give one number, or 2",
    ),
    (
        "group with one name",
        {"columns": ["int_{0..1}"], "name": "x", "ops": [FILL]},
        "spec.features[2].name",
        "2 columns would share the name x",
        "x_{column}",
    ),
    (
        "name taken",
        {"columns": ["int_0"], "ops": [FILL]},
        "spec.features[2].columns",
        "feature int_0 exists already, in spec.features[0]",
        "give `name`",
    ),
    (
        "given name taken",
        {"columns": ["int_0"], "name": "cat_1", "ops": [FILL]},
        "spec.features[2].name",
        "feature cat_1 exists already, in spec.features[1]",
        "",
    ),
    (
        "shared table of other rows",
        one(HASH, column="cat_0", table={"rows": 50, "dim": 8, "name": "cat_1"}),
        "spec.features[2].table.rows",
        "table cat_1 has rows 50 here but 100 for feature cat_1",
        "another table name",
    ),
    (
        "shared table of other pooling",
        one(HASH, column="cat_0", table={**TABLE, "name": "cat_1", "pooling": "mean"}),
        "spec.features[2].table.pooling",
        "pooling mean here but sum",
        "",
    ),
    (
        "dim of the interaction",
        one(HASH, column="cat_0", table={"rows": 100, "dim": 16}),
        "spec.features[2].table.dim",
        "dim 16 differs from the bottom MLP's last size 8",
        "spec.model.dlrm.bottom",
    ),
    (
        "unknown weights",
        one(HASH, column="cat_0", table=TABLE, weights="score_0"),
        "spec.features[2].weights",
        "unknown column score_0",
        "did you mean scores_0",
    ),
    (
        "weights of another type",
        one(HASH, column="cat_0", table=TABLE, weights="cat_1"),
        "spec.features[2].weights",
        "weights cat_1 are list<int64>",
        "list<float32>",
    ),
    (
        "weights of a scalar",
        one(HASH, column="count", table=TABLE, weights="scores_0"),
        "spec.features[2].weights",
        "int64 count cannot carry weights",
        "list<int64>",
    ),
    (
        "unknown reference",
        one({"cartesian": {"with": "cat_7", "max": 9}}, HASH, column="cat_0", table=TABLE),
        "spec.features[2].ops[0].cartesian.with",
        "cat_7 is neither a column nor a feature",
        "did you mean cat_",
    ),
    (
        "itself",
        one({"cartesian": {"with": "it", "max": 9}}, HASH, column="cat_0", table=TABLE),
        "spec.features[2].ops[0].cartesian.with",
        "features read each other in a cycle: it -> it",
        "read a column instead",
    ),
    (
        "overlap of two types",
        one({"jaccard": {"match": "small"}}, FILL, column="cat_0"),
        "spec.features[2].ops[0].jaccard",
        "takes two lists of one type, list<int64> here, this is list<int32>",
        "declare both columns alike",
    ),
    (
        "scores of another type",
        one({"scoreSum": {"match": "cat_1", "scores": "cat_2"}}, FILL, column="cat_0"),
        "spec.features[2].ops[0].scoreSum",
        "takes list<float32> as scores",
        "",
    ),
    (
        "scores out of step",
        one(FILL, {"cosine": {"match": "cat_1", "idScores": "scores_0", "matchScores": "scores_1"}}, FILL)
        | {"columns": ["cat_0"], "nulls": "skip"},
        "spec.features[2].ops[1].cosine",
        "nulls: skip would put scores_0 out of step with cat_0",
        "nulls: propagate",
    ),
    (
        "offset that is a list",
        one(FILL, {"localHour": {"offsetColumn": "small"}}, column="hour", table=TABLE),
        "spec.features[2].ops[1].localHour",
        "as offsetColumn, this is list<int32>",
        "one number a row",
    ),
    (
        "label as an input",
        one(FILL, column="label"),
        "spec.features[2].columns",
        "label is the label: a model must not see it",
        "",
    ),
    (
        "label as a reference",
        one(FILL, {"localHour": {"offsetColumn": "label"}}, column="hour", table=TABLE),
        "spec.features[2].ops[1].localHour.offsetColumn",
        "a model must not see it",
        "",
    ),
]


@pytest.mark.parametrize(("feature", "place", "message", "hint"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_fault_of_a_feature_is_reported_at_its_place(
    feature: dict[str, Any], place: str, message: str, hint: str
) -> None:
    (problem,) = problems_of(*with_others(feature))
    assert places([problem]) == [place]
    assert message in problem.message
    assert hint in problem.hint


def test_all_faults_are_reported_at_once() -> None:
    columns = {**COLUMNS, "odd": "list<string>", "cat_{1..2}": "list<int64>", "z_{5..2}": "int32"}
    features = [
        one(FILL, column="int_9"),
        one({"cartesian": {"with": "nowhere", "max": 1}}, column="cat_9", weights="w", name="second", table=TABLE),
        one(FILL, {"logit": {"eps": 0.1}}, column="count", name="third"),
        one(HASH, column="odd", name="fourth", table={"rows": 1, "dim": 12}),
    ]
    problems = problems_of(*features, columns=columns, label="labell", model={"dlrm": {"bottom": [8], "top": [3]}})
    assert sorted(places(problems)) == sorted(
        [
            "spec.columns.odd",
            "spec.columns.cat_{1..2}",
            "spec.columns.z_{5..2}",
            "spec.label",
            "spec.features[0].columns",
            "spec.features[1].ops[0].cartesian.with",
            "spec.features[1].columns",
            "spec.features[1].weights",
            "spec.features[2].ops[1].logit",
            "spec.features[3].table.dim",
            "spec.model.dlrm.top[0]",
        ]
    )


def test_a_fault_of_many_columns_is_one_problem_that_names_them() -> None:
    (problem,) = problems_of(DENSE, {**SPARSE, "ops": [{"logit": {"eps": 0.1}}]})
    assert problem.message.startswith("column cat_0, cat_1, cat_2 and 1 more: logit takes")


def test_each_cycle_is_reported_once_and_features_that_read_it_are_not() -> None:
    def cross(name: str, other: str) -> dict[str, Any]:
        return one({"cartesian": {"with": other, "max": 9}}, HASH, column="cat_0", name=name, table=TABLE)

    features = [cross("a", "b"), cross("b", "c"), cross("c", "a"), cross("d", "a"), cross("e", "f"), cross("f", "e")]
    problems = problems_of(DENSE, *features)
    assert [p.message for p in problems] == [
        "column cat_0: features read each other in a cycle: a -> b -> c -> a",
        "column cat_0: features read each other in a cycle: e -> f -> e",
    ]
    assert places(problems) == ["spec.features[3].ops[0].cartesian.with", "spec.features[6].ops[0].cartesian.with"]


def test_a_list_label_is_a_fault() -> None:
    (problem,) = problems_of(label="cat_0", features=[DENSE, {**SPARSE, "columns": ["cat_1"]}])
    assert places([problem]) == ["spec.label"]
    assert "list<int64>" in problem.message


@pytest.mark.parametrize(("features", "missing"), [([DENSE], "sparse"), ([SPARSE], "dense")])
def test_a_dlrm_needs_both_kinds(features: list[dict[str, Any]], missing: str) -> None:
    (problem,) = problems_of(*features)
    assert places([problem]) == ["spec.features"]
    assert f"at least one {missing} feature" in problem.message


def test_a_thousand_features_that_read_each_other_in_a_row_compile() -> None:
    def link(i: int) -> dict[str, Any]:
        cross = {"cartesian": {"with": f"link_{i + 1}" if i < 999 else "cat_0", "max": 2}}
        return {"columns": ["cat_0"], "name": f"link_{i}", "ops": [cross, HASH], "table": TABLE}

    assert problems_of(DENSE, *[link(i) for i in range(1000)]) == []
