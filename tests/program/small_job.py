"""A small job whose parts a test replaces."""

from __future__ import annotations

from typing import Any

from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJobSpec
from rap_contract.problem import Problem, format_path

COLUMNS = {
    "label": "int32",
    "int_{0..2}": "float32",
    "count": "int64",
    "hour": "int64",
    "cat_{0..3}": "list<int64>",
    "small": "list<int32>",
    "w_cat_{0..3}": "list<float32>",
    "scores_{0..1}": "list<float32>",
}
FILL = {"fillNull": {"value": 0}}
DENSE = {"columns": ["int_{0..2}"], "ops": [FILL]}
SPARSE = {"columns": ["cat_{0..3}"], "ops": [{"sigridHash": {}}], "table": {"rows": 100, "dim": 8}}


def spec_of(*features: dict[str, Any], **changes: Any) -> RAPJobSpec:
    """The spec with these features (DENSE and SPARSE without any); `changes` replace other fields."""
    fields: dict[str, Any] = {
        "source": {"files": {"path": "events"}},
        "columns": COLUMNS,
        "label": "label",
        "features": list(features) or [DENSE, SPARSE],
        "model": {"dlrm": {"bottom": [16, 8], "top": [16, 1]}},
        "checkpoint": {"path": "checkpoints"},
    }
    return RAPJobSpec.model_validate(fields | changes)


def graph_of(*features: dict[str, Any], **changes: Any) -> FeatureGraph:
    """The compiled graph; the test fails where there are problems. Without a DLRM any features will do."""
    changes.setdefault("model", {"factory": "package.module:function"})
    graph, problems = compile_features(spec_of(*features, **changes))
    assert graph is not None, "\n".join(map(str, problems))
    return graph


def problems_of(*features: dict[str, Any], **changes: Any) -> list[Problem]:
    """All problems; there is no graph then."""
    graph, problems = compile_features(spec_of(*features, **changes))
    assert (graph is None) == bool(problems)
    return list(problems)


def places(problems: list[Problem]) -> list[str]:
    return [format_path(problem.path) for problem in problems]
