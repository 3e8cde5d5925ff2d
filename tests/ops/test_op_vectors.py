"""The vectors of SEMANTICS, exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rap_contract.ops import OPS
from rap_trainer.ops.registry import apply
from rap_trainer.ops.value import Context, Dense, Jagged, Value


def numbers(*values: float, dtype: torch.dtype = torch.int64) -> Dense:
    return Dense(values_B=torch.tensor(values, dtype=dtype))


def one_list(*values: float, dtype: torch.dtype = torch.int64) -> Jagged:
    return Jagged(values_N=torch.tensor(values, dtype=dtype), lengths_B=torch.tensor([len(values)], dtype=torch.int32))


def result(stem: str, value: Value, references: dict[str, Value] | None = None, **parameters: Any) -> list[float]:
    op = OPS[stem].model_validate(parameters)
    given = apply(op, value, references or {}, Context(row_ids_B=torch.zeros(1, dtype=torch.int64)))
    numbers: list[float] = (given.values_B if isinstance(given, Dense) else given.values_N).tolist()
    return numbers


HASHES = [6, 60, 54, 54, 9, 4, 91, 11, 67, 79, 2, 25, 92, 98, 83, 66, 2]


def test_sigrid_hash_of_0_to_16() -> None:
    assert result("sigrid_hash", numbers(*range(17)), salt=0, max_value=100) == HASHES


def test_sigrid_hash_widens_int32() -> None:
    assert result("sigrid_hash", numbers(*range(17), dtype=torch.int32), max_value=100) == HASHES


def test_sigrid_hash_into_one_row_is_0() -> None:
    assert result("sigrid_hash", numbers(1, -5, 2**62), max_value=1) == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("borders", "values", "expected"),
    [
        ([2, 5, 10], [1, 2, 3, 5, 8, 10, 11], [0, 0, 1, 1, 2, 2, 3]),
        ([0, 2, 3, 5, 500, 1000], [1, 2, 3, 4, 5, 6], [1, 1, 2, 3, 3, 4]),
        ([1, 2, 2, 3, 3], [1, 2, 3, 4], [0, 2, 4, 5]),
    ],
    ids=["three", "six", "repeats"],
)
def test_bucketize(borders: list[float], values: list[float], expected: list[int], dtype: torch.dtype) -> None:
    assert result("bucketize", numbers(*values, dtype=dtype), borders=borders) == expected


def test_bucketize_between_repeated_borders() -> None:
    assert result("bucketize", numbers(1.5, dtype=torch.float32), borders=[1, 2, 2, 3, 3]) == [1]


def test_bucketize_right_puts_a_border_above() -> None:
    assert result("bucketize", numbers(1, 2, 3), borders=[1, 2, 2], side="right") == [1, 3, 3]


def test_firstx_of_three_lists() -> None:
    lists = Jagged(
        values_N=torch.arange(10),
        lengths_B=torch.tensor([4, 3, 3], dtype=torch.int32),
        weights_N=torch.arange(10, dtype=torch.float32),
    )
    given = apply(OPS["firstx"].model_validate({"n": 2}), lists, {}, Context(row_ids_B=torch.arange(3)))
    assert isinstance(given, Jagged)
    assert given.values_N.tolist() == [0, 1, 4, 5, 7, 8]
    assert given.lengths_B.tolist() == [2, 2, 2]
    assert given.weights_N is not None
    assert given.weights_N.tolist() == [0, 1, 4, 5, 7, 8]


def compare(stem: str, ids: Jagged, match: Jagged, *scores: Jagged) -> float:
    names = dict(zip({"cosine": ("id_scores", "match_scores")}.get(stem, ("scores",)), scores, strict=False))
    return result(stem, ids, {"m": match, **names}, match="m", **{name: name for name in names})[0]


def scores(*values: float) -> Jagged:
    return one_list(*values, dtype=torch.float32)


MORE, LESS = one_list(10, 10, 11, 12), one_list(10, 10, 11, 13)


def test_comparisons_of_two_lists() -> None:
    assert compare("id_overlap_count", MORE, LESS) == 3
    assert compare("has_id_overlap", MORE, LESS) == 1
    assert compare("has_id_overlap", MORE, one_list(13)) == 0
    assert compare("get_max_count", one_list(1, 1, 2, 3), one_list(1, 2, 3)) == 4
    assert compare("jaccard", one_list(1, 1, 2, 3), one_list(1, 2, 3)) == 0.75
    assert compare("jaccard", one_list(), one_list()) != compare("jaccard", one_list(), one_list()), "NaN"


def test_cosine_of_two_scored_lists() -> None:
    three = one_list(1, 2, 3)
    assert compare("cosine", three, three, scores(1, 2, 3), scores(5, 4, 3)) == pytest.approx(0.831522, abs=1e-6)


def test_scores_of_ids_in_both_lists() -> None:
    assert compare("score_sum", MORE, LESS, scores(10, 10, 11, 13)) == 31
    assert compare("score_min", MORE, LESS, scores(10, 10, 11, 13)) == 10
    assert compare("score_max", MORE, LESS, scores(10, 10, 11, 13)) == 11
    assert compare("score_min", MORE, one_list(1), scores(-4)) == 0


def test_ngram_of_a_list_and_of_a_short_one() -> None:
    assert result("ngram", one_list(1, 2, 3, 4), n=3) == [1, 2, 3, 2, 3, 4]
    assert result("ngram", one_list(1, 2), n=3) == [1, 2]
    assert result("ngram", one_list(), n=3) == []


def test_onehot_outside_its_range_is_class_0() -> None:
    values = numbers(0, 15.9, 16, -1, dtype=torch.float32)
    assert result("onehot", values, low=0, high=16, classes=2) == [1, 0, 0, 1, 1, 0, 1, 0]


def test_positive_modulus_has_the_sign_of_the_divisor() -> None:
    assert result("positive_modulus", numbers(-7, 7, -(2**63)), n=5) == [3, 2, 2]


def test_map_id_outside_its_map_gives_the_default() -> None:
    assert result("map_id", numbers(0, 1, 2, -1), map=[7, 8], default=9) == [7, 8, 9, 9]
