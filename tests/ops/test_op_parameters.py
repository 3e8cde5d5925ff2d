"""Parameters that make no sense are refused where they are written, and the message says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from ops.cases import COMPARING, PARAMETERS
from pydantic import ValidationError
from rap_contract.ops import OPS, OpError, OpSpec
from rap_contract.types import Dtype, ValueType

YAML_NAMES = (
    "boxcox bucketize cartesian clamp cosine enumerate fillNull firstx getMaxCount hasIdOverlap idOverlapCount jaccard "
    "localHour log log1p logit mapId minMax ngram onehot positiveModulus sample scoreMax scoreMin scoreSum sigridHash "
    "standardize"
)


def test_ops_have_the_names_of_the_documentation() -> None:
    assert " ".join(sorted(op.yaml_name() for op in OPS.values())) == YAML_NAMES


def test_every_op_has_a_case_in_these_tests() -> None:
    assert set(PARAMETERS) | COMPARING == set(OPS)


@pytest.mark.parametrize(
    ("op", "parameters", "message"),
    [
        ("sigridHash", {"maxValue": 0}, "greater than or equal to 1"),
        ("sigridHash", {"salt": 2**63}, "less than"),
        ("positiveModulus", {"n": 0}, "greater than or equal to 1"),
        ("firstx", {"n": -1}, "greater than or equal to 0"),
        ("clamp", {"lo": 2, "hi": 1}, "lo must not be above hi: lo 2, hi 1"),
        ("bucketize", {"borders": []}, "at least 1 item"),
        ("bucketize", {"borders": [1, 3, 2]}, "border 2 is 2.0, below 3.0"),
        ("bucketize", {"borders": [1, float("nan")]}, "finite number"),
        ("logit", {"eps": 0}, "greater than 0"),
        ("logit", {"eps": 0.5}, "less than 0.5"),
        ("boxcox", {}, "lambda"),
        ("log", {"min": 0}, "greater than 0"),
        ("log1p", {"min": -1}, "greater than -1"),
        ("onehot", {"low": 0, "high": 16, "classes": 0}, "greater than or equal to 1"),
        ("onehot", {"low": 1, "high": 1, "classes": 2}, "high must be above low"),
        ("ngram", {"n": 0}, "greater than or equal to 1"),
        ("mapId", {"map": []}, "at least 1 item"),
        ("mapId", {"map": [2**63]}, "less than"),
        ("cartesian", {"with": "x"}, "max"),
        ("sample", {"rate": 1.5}, "less than or equal to 1"),
        ("localHour", {"offset": 1, "offsetColumn": "x"}, "give offset or offsetColumn, not both"),
        ("standardize", {"mean": 0, "std": 0}, "greater than or equal to"),
        ("minMax", {"lo": 1, "hi": 1}, "hi must be above lo"),
        ("fillNull", {"value": float("inf")}, "finite number"),
        ("jaccard", {}, "match"),
        ("scoreSum", {"match": "x"}, "scores"),
        ("cosine", {"match": "x", "idScores": "y"}, "matchScores"),
    ],
)
def test_bad_parameters_are_refused(op: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        OpSpec.model_validate({op: parameters})
    assert message in str(caught.value)


def test_a_step_is_exactly_one_op() -> None:
    for step in ({}, {"firstx": {"n": 1}, "enumerate": {}}):
        with pytest.raises(ValidationError, match="one op a step"):
            OpSpec.model_validate(step)


def test_an_eps_that_float32_loses_is_refused() -> None:
    op = OPS["logit"].model_validate({"eps": 1e-9})
    with pytest.raises(OpError, match="1 - eps rounds to 1"):
        op.output(ValueType(dtype=Dtype.FLOAT32), {})
    assert op.output(ValueType(dtype=Dtype.FLOAT64), {}).dtype is Dtype.FLOAT64


def test_a_filler_that_float32_cannot_hold_is_refused() -> None:
    op = OPS["fill_null"].model_validate({"value": 1e39})
    with pytest.raises(OpError, match="does not fit float32"):
        op.output(ValueType(dtype=Dtype.FLOAT32), {})


def test_widths_follow_the_ops() -> None:
    five = ValueType(dtype=Dtype.INT64, is_list=True, nullable=False, width=5)

    def width(stem: str, **parameters: Any) -> int | None:
        return OPS[stem].model_validate(parameters).output(five, {"other": five}).width

    assert width("firstx", n=3) == 3
    assert width("firstx", n=9) == 5
    assert width("ngram", n=2) == 8
    assert width("ngram", n=9) == 5
    assert width("ngram", n=2, combine="hash") == 4
    assert width("onehot", low=0, high=8, classes=4) == 20
    assert width("cartesian", **{"with": "other"}, max=99) == 25
    assert width("cartesian", **{"with": "other"}, max=7) == 7
    assert width("sample", rate=0.5) is None
