"""The bench's compile baseline: what it traces gives what the eager program gives, and it says what it cannot take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rap_contract.graph import compile_features
from rap_contract.job import RAPJobSpec
from rap_trainer.bench import compiled
from rap_trainer.bench.subject import Refused
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program

ROWS = 32


def small_plan() -> dict[str, Any]:
    """Plan 0 with three columns of each kind."""
    document = plan_job(0, max_rows=1000, dim=16, batch_size=ROWS)
    spec = document["spec"]
    spec["columns"] = {"label": "int32", "int_{0..2}": "float32", "cat_{0..2}": "list<int64>"}
    numbers, ids, _ = spec["features"]
    numbers["columns"], ids["columns"], ids["table"]["rows"] = ["int_{0..2}"], ["cat_{0..2}"], 1000
    return document


def same_as_eager(document: dict[str, Any]) -> None:
    graph, problems = compile_features(RAPJobSpec.model_validate(document["spec"]))
    assert graph is not None, problems
    first, second = (synthetic_batch(document, ROWS, seed=seed) for seed in range(2))
    features = compiled.CompiledFeatures(compiled.graph_of_numbers(document), compiled.as_numbers(first))
    actual, expected = features.run(compiled.as_numbers(second)), Program(graph).run(second)
    assert actual.sparse.keys() == expected.sparse.keys()
    assert torch.equal(actual.sparse.lengths(), expected.sparse.lengths())
    assert torch.equal(actual.sparse.values(), expected.sparse.values())
    torch.testing.assert_close(actual.dense_BD, expected.dense_BD, equal_nan=True)
    assert torch.equal(actual.labels_B, expected.labels_B)


@pytest.mark.parametrize("salt", [0, 7, -(2**63)])
def test_plain_pytorch_gives_what_the_eager_program_gives(salt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    document = small_plan()
    document["spec"]["features"][1]["ops"][1] = {"sigridHash": {"salt": salt}}
    same_as_eager(document)


def test_the_whole_of_plan_1_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    same_as_eager(plan_job(1, max_rows=1000, dim=16, batch_size=ROWS))


def test_an_op_that_is_not_written_is_named() -> None:
    document = small_plan()
    document["spec"]["features"][0]["ops"].append({"clamp": {"lo": 0, "hi": 1}})
    batch = compiled.as_numbers(synthetic_batch(document, ROWS, seed=0))
    with pytest.raises(Refused, match=r"op clamp is not written for torch\.compile"):
        compiled.CompiledFeatures(compiled.graph_of_numbers(document), batch)


def test_what_has_no_compiled_form_is_refused_with_the_reason() -> None:
    with pytest.raises(Refused, match="some features are lists"):
        compiled.graph_of_numbers(plan_job(2, max_rows=1000, dim=16, batch_size=ROWS))
    raw = synthetic_batch(small_plan(), ROWS, seed=0)
    column = raw.columns["cat_0"]
    assert column.lengths_B is not None
    lengths_B = column.lengths_B.clone()
    lengths_B[0], lengths_B[1] = 2, 0
    with pytest.raises(Refused, match="column cat_0 holds lists of several elements"):
        compiled.as_numbers(replace(raw, columns={**raw.columns, "cat_0": replace(column, lengths_B=lengths_B)}))
