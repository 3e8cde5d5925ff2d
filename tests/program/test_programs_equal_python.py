"""Programs against plain Python over random jobs and batches, and over plans 0-4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program.python_program import Batch, dense_of, sparse_of, values_of
from program.raw_batches import batches, raw_of, rows_of
from program.small_job import DENSE, FILL, graph_of
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.batch import ModelBatch
from rap_trainer.ops import segments
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program

EXAMPLES = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
ZERO = {"rows": 50, "dim": 8, "outOfRange": "zero"}
HASH: dict[str, Any] = {"sigridHash": {}}


def feature(name: str, column: str, *ops: Any, **fields: Any) -> dict[str, Any]:
    return {"name": name, "columns": [column], "ops": list(ops), **fields}


def ids(*ops: Any, column: str = "cat_0", nulls: str = "propagate", **fields: Any) -> dict[str, Any]:
    return feature("it", column, *ops, nulls=nulls, table=fields.pop("table", ZERO), **fields)


def group(*ops: Any, **fields: Any) -> dict[str, Any]:
    """Four features that run as one lane, each with a table of its own size."""
    table = {"rows": [50, 7, 30, 1], "dim": 8, "outOfRange": "zero"}
    return {"name": "x_{column}", "columns": ["cat_{0..3}"], "ops": list(ops), "table": table, **fields}


ONEHOT = {"onehot": {"low": 0, "high": 16, "classes": 3, "dtype": "int64"}}
JOBS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "nothing": lambda nulls: [ids(nulls=nulls)],
    "fill first": lambda nulls: [ids(FILL, HASH, {"firstx": {"count": 2}}, nulls=nulls, weights="scores_0")],
    "fill last": lambda nulls: [ids({"firstx": {"count": 3}}, HASH, {"fillNull": {"value": 7}}, nulls=nulls)],
    "fill last, weights": lambda nulls: [
        ids({"firstx": {"count": 3}}, {"fillNull": {"value": 7}}, nulls=nulls, weights="scores_0"),
        feature("other", "cat_1", HASH, table=ZERO),
    ],
    "ngrams": lambda nulls: [ids({"ngram": {"size": 3}}, {"sample": {"rate": 0.5}}, nulls=nulls, weights="scores_0")],
    "hashed ngrams": lambda nulls: [
        ids({"ngram": {"size": 2, "combine": "hash"}}, HASH, nulls=nulls, weights="scores_0")
    ],
    "crossed with a feature": lambda nulls: [
        feature("head", "cat_1", {"firstx": {"count": 2}}, table=ZERO),
        ids({"cartesian": {"with": "head", "max": 4}}, HASH, nulls=nulls),
    ],
    "crossed with weights": lambda nulls: [
        ids({"cartesian": {"with": "cat_1", "max": 9}}, nulls=nulls, weights="scores_0")
    ],
    "a scalar as ids": lambda nulls: [
        feature("it", "int_1", {"bucketize": {"borders": [0, 1, 5]}}, table=ZERO, nulls=nulls)
    ],
    "one hot ids of a scalar": lambda nulls: [
        feature("it", "count", ONEHOT, {"ngram": {"size": 2}}, table=ZERO, nulls=nulls)
    ],
    "one hot numbers": lambda nulls: [
        feature("it", "int_1", FILL, {"onehot": {"low": 0, "high": 9, "classes": 4}}, nulls=nulls),
        feature("first", "int_1", FILL, {"onehot": {"low": 0, "high": 9, "classes": 4}}, {"firstx": {"count": 2}}),
    ],
    "comparisons": lambda nulls: [
        feature(op, "cat_0", {op: {"match": "cat_1"}}, {"fillNull": {"value": -1, "nan": True}}, nulls=nulls)
        for op in ("hasIdOverlap", "idOverlapCount", "getMaxCount", "jaccard")
    ],
    "scores": lambda nulls: [
        feature(op, "cat_0", {op: {"match": "cat_1", "scores": "scores_1"}}, {"fillNull": {"value": -1}}, nulls=nulls)
        for op in ("scoreSum", "scoreMin", "scoreMax")
    ],
    "cosine": lambda nulls: [
        feature(
            "it",
            "cat_0",
            {"cosine": {"match": "cat_1", "idScores": "scores_0", "matchScores": "scores_1"}},
            {"fillNull": {"value": 0}},
            nulls=nulls,
        )
    ],
    "hours": lambda nulls: [
        feature("it", "hour", {"localHour": {"offsetColumn": "count"}}, table=ZERO, nulls=nulls),
        feature("dense", "hour", FILL, {"localHour": {"offset": 3600}}, nulls=nulls),
    ],
    "a group": lambda nulls: [group({"sigridHash": {"salt": 5}}, {"firstx": {"count": 2}}, nulls=nulls)],
    "a group filled first": lambda nulls: [group(FILL, {"ngram": {"size": 2}}, {"sigridHash": {}}, nulls=nulls)],
    "a group with weights": lambda nulls: [
        group(
            {"sample": {"rate": 0.6}}, {"sigridHash": {}}, {"fillNull": {"value": 0}}, nulls=nulls, weights="w_{column}"
        )
    ],
    "a group read by a group": lambda nulls: [
        group(FILL, {"sigridHash": {}}, nulls=nulls),
        *(
            feature(
                f"cross_{i}",
                f"cat_{i}",
                {"cartesian": {"with": f"x_cat_{3 - i}", "max": 6}},
                HASH,
                table=ZERO,
                nulls=nulls,
            )
            for i in range(3)
        ),
    ],
    "a group compared": lambda nulls: [
        feature(f"it_{i}", f"cat_{i}", {"getMaxCount": {"match": f"cat_{i + 1}"}}, FILL, nulls=nulls) for i in range(3)
    ],
    "narrow ids": lambda nulls: [
        ids({"positiveModulus": {"modulus": 30}}, {"enumerate": {}}, column="small", nulls=nulls)
    ],
}


@pytest.mark.parametrize("padded", [False, True], ids=["exact", "padded"])
@pytest.mark.parametrize("nulls", ["propagate", "skip"])
@pytest.mark.parametrize("job", sorted(JOBS))
@EXAMPLES
@given(data=st.data())
def test_a_job_gives_what_python_gives(job: str, nulls: str, padded: bool, data: st.DataObject) -> None:
    graph = graph_of(DENSE, *JOBS[job](nulls))
    batch = data.draw(batches(graph))
    with pytest.MonkeyPatch.context() as patch:
        if padded:
            patch.setattr(segments, "host_may_look", lambda tensor: False)
        assert_equals_python(Program(graph).run(raw_of(batch)), graph, batch)


@pytest.mark.parametrize(("number", "ops"), [(0, 105), (1, 105), (2, 495), (3, 931), (4, 3000)])
def test_a_plan_has_its_ops_and_gives_what_python_gives(number: int, ops: int) -> None:
    job = plan_job(number, max_rows=1000)
    graph = plan_graph(job)
    assert len(graph.ops) == ops if number < 4 else len(graph.ops) >= ops
    raw = synthetic_batch(job, 24 if number < 4 else 4, seed=number)
    assert_equals_python(Program(graph).run(raw), graph, rows_of(raw))


@pytest.mark.parametrize("number", range(5))
def test_a_plan_runs_on_no_rows(number: int) -> None:
    job = plan_job(number)
    graph = plan_graph(job)
    batch = Program(graph).run(synthetic_batch(job, 0))
    assert batch.dense_BD.shape == (0, graph.dense_width)
    assert batch.sparse.stride() == 0
    assert batch.sparse.keys() == [feature.name for feature in graph.sparse]


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(5))
def test_a_plan_gives_the_same_on_a_gpu(number: int) -> None:
    job = plan_job(number, max_rows=1000)
    graph = plan_graph(job)
    raw = synthetic_batch(job, 24 if number < 4 else 4, seed=number)
    batch = Program(graph).run(raw.map(lambda tensor: tensor.cuda()))
    assert batch.dense_BD.is_cuda
    assert_equals_python(batch, graph, rows_of(raw))


def plan_graph(job: dict[str, Any]) -> FeatureGraph:
    graph, problems = compile_features(RAPJob.model_validate(job).spec)
    assert graph is not None, problems
    return graph


def assert_equals_python(batch: ModelBatch, graph: FeatureGraph, expected: Batch) -> None:
    values = values_of(graph, expected)
    num_rows = len(expected.row_ids)
    assert batch.dense_BD.dtype is torch.float32
    assert batch.dense_BD.shape == (num_rows, graph.dense_width)
    for got_row, row in zip(batch.dense_BD.tolist(), dense_of(graph, values), strict=True):
        for got, wanted in zip(got_row, row, strict=True):
            same = got == wanted or (math.isnan(got) and math.isnan(wanted))
            assert same or math.isclose(got, wanted, rel_tol=1e-5, abs_tol=1e-5)
    sparse = batch.sparse
    assert sparse.keys() == [feature.name for feature in graph.sparse]
    assert sparse.stride() == num_rows
    assert sparse.values().dtype is torch.int64
    assert sparse.lengths().dtype is torch.int32
    assert (sparse.weights_or_none() is not None) == graph.weighted
    assert sparse.values().numel() == int(sparse.lengths().sum())
    for feature in graph.sparse:
        rows, weights = sparse_of(feature, values)
        jagged = sparse[feature.name]
        assert [row.tolist() for row in jagged.to_dense()] == rows
        if graph.weighted:
            flat = [w for row in weights for w in row] if weights is not None else [1.0 for row in rows for _ in row]
            assert jagged.weights().tolist() == pytest.approx(flat)
    assert batch.labels_B.tolist() == to_rows_of_label(expected, graph.label)


def to_rows_of_label(batch: Batch, label: str) -> list[float]:
    return [float(torch.tensor(x, dtype=torch.float32)) for x in batch.columns[label].rows]
