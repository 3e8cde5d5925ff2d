"""A batch that is not what its job declares is refused with the column's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ops.reference import Rows
from program.python_program import Batch
from program.raw_batches import raw_of
from program.small_job import graph_of
from rap_trainer.batch import Column, RawBatch
from rap_trainer.program import Program
from rap_trainer.program.columns import BatchError

TABLE = {"rows": 100, "dim": 8}
COSINE = {"cosine": {"match": "cat_1", "idScores": "scores_0", "matchScores": "scores_1"}}


def program() -> Program:
    return Program(
        graph_of(
            {"columns": ["int_0"], "ops": [{"fillNull": {"value": 0}}]},
            {"columns": ["cat_0"], "ops": [{"sigridHash": {}}], "weights": "scores_0", "table": TABLE},
            {"name": "angle", "columns": ["cat_0"], "ops": [COSINE, {"fillNull": {"value": 0}}]},
        )
    )


def batch(**changes: Rows) -> RawBatch:
    columns = {
        "label": Rows([0, 1], False, "int32"),
        "int_0": Rows([0.5, None], False, "float32"),
        "cat_0": Rows([[1, 2], [3]], True, "int64"),
        "cat_1": Rows([[2], [3, 4]], True, "int64"),
        "scores_0": Rows([[0.5, 0.5], [1.0]], True, "float32"),
        "scores_1": Rows([[0.5], [1.0, 2.0]], True, "float32"),
    }
    return raw_of(Batch(columns | changes, [0, 1]))


def test_a_good_batch_runs() -> None:
    assert program().run(batch()).dense_BD.shape == (2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"int_0": Rows([0, 1], False, "int64")}, "column int_0 is declared float32, its values are torch.int64"),
        ({"int_0": Rows([0.5], False, "float32")}, "column int_0 is declared float32: one value for each of 2 rows"),
        ({"int_0": Rows([[0.5], [1.0]], True, "float32")}, "column int_0 is declared float32: one value"),
        ({"cat_0": Rows([1, 2], False, "int64")}, "column cat_0 is declared list<int64>: one length"),
        ({"scores_0": Rows([[0.5], [1.0, 1.0]], True, "float32")}, "weights scores_0 and ids cat_0 have lists of diff"),
        ({"scores_0": Rows([[0.5], [1.0]], True, "float32")}, "weights scores_0 and ids cat_0 have lists of different"),
        ({"scores_0": Rows([[0.5, 1], [1.0]], True, "float64")}, "weights scores_0 of cat_0 are missing"),
        ({"scores_1": Rows([[0.5, 1.0], [1.0]], True, "float32")}, "ids and their scores have lists of different"),
    ],
    ids=["type", "too short", "list", "scalar", "weights", "fewer weights", "weight type", "scores"],
)
def test_a_bad_column_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("<", ".").replace(">", ".")):
        program().run(batch(**changes))


def test_a_missing_column_is_named() -> None:
    raw = batch()
    with pytest.raises(BatchError, match="column cat_1 is missing from the batch"):
        program().run(replace(raw, columns={name: c for name, c in raw.columns.items() if name != "cat_1"}))


def test_a_null_weight_counts_as_one() -> None:
    scores = Rows([[0.5, None], [1.0]], True, "float32")
    assert program().run(batch(scores_0=scores)).sparse.weights().tolist() == [0.5, 1.0, 1.0]


def test_counters_are_on_the_device_and_in_the_batch() -> None:
    graph = graph_of({"columns": ["int_0"], "ops": [{"bucketize": {"borders": [1]}}], "table": TABLE})
    columns = {
        "label": Column(values_N=torch.tensor([0, 1, 0], dtype=torch.int32)),
        "int_0": Column(
            values_N=torch.tensor([float("nan"), 2.0, float("nan")]), nulls_N=torch.tensor([False, False, True])
        ),
    }
    raw = RawBatch(
        columns=columns,
        row_ids_B=torch.arange(3),
        event_times_s_B=torch.zeros(3, dtype=torch.float64),
        num_rows=3,
        global_rows=3,
    )
    assert int(Program(graph).run(raw).counters["bucketize_nan"]) == 1
