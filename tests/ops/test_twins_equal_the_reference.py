"""Every eager twin against slow Python, over odd shapes, nulls, weights, extremes, NaN and infinities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.cases import Case, cases, type_of
from ops.reference import REFERENCE
from ops.rows import assert_same, to_rows, to_value
from rap_contract.ops import OPS
from rap_contract.types import ValueType
from rap_trainer.ops import segments
from rap_trainer.ops.registry import apply
from rap_trainer.ops.value import Context, Dense, Value, elements

TOLERANCE = dict.fromkeys(("logit", "boxcox", "log", "log1p"), 2e-6) | dict.fromkeys(
    ("standardize", "min_max", "cosine", "score_sum", "jaccard"), 1e-6
)
STEMS = sorted(OPS)
EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def run(case: Case, *, padding: int = 0, device: str = "cpu", never_waits: bool = False) -> Value:
    """The twin's result; fails if it wrote into an input, or waited for a GPU where it must not."""
    value = to_value(case.value, padding=padding, device=device)
    references = {name: to_value(each, padding=padding, device=device) for name, each in case.references.items()}
    context = Context(row_ids_B=torch.tensor(case.row_ids, dtype=torch.int64, device=device))
    tensors = [t for each in (value, *references.values()) for t in vars(each).values() if t is not None]
    before = [tensor.clone() for tensor in tensors]
    if never_waits:
        apply(case.op, value, references, context)  # makes the constants, once in a program's life
        torch.cuda.set_sync_debug_mode("error")
    try:
        result = apply(case.op, value, references, context)
    finally:
        if never_waits:
            torch.cuda.set_sync_debug_mode("default")
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor.nan_to_num(7.5), old.nan_to_num(7.5)), "an op wrote into its input"
    return result


def expect(case: Case, result: Value) -> None:
    """Equal to the reference where the reference is defined, and of the type the contract promises."""
    expected = REFERENCE[case.op.stem](case.op, case.value, case.references, case.row_ids)
    assert_same(to_rows(result), expected, tolerance=TOLERANCE.get(case.op.stem, 0.0))
    promised = case.op.output(type_of(case.value), {name: type_of(each) for name, each in case.references.items()})
    assert_keeps_promise(result, promised)


def assert_keeps_promise(result: Value, promised: ValueType) -> None:
    """What a graph proves about a value holds for its rows."""
    rows = to_rows(result)
    assert rows.is_list == promised.is_list
    assert rows.dtype == promised.dtype
    if not promised.nullable:
        assert None not in rows.rows
    present = [row for row in rows.rows if row is not None]
    if promised.width is not None:
        assert all(len(row) == promised.width for row in present)
    numbers = [x for row in present for x in row] if promised.is_list else present
    assert promised.low is None or all(x >= promised.low for x in numbers)
    assert promised.high is None or all(x <= promised.high for x in numbers)


@pytest.mark.parametrize("stem", STEMS)
@EXAMPLES
@given(data=st.data())
def test_a_twin_gives_what_the_reference_gives(stem: str, data: st.DataObject) -> None:
    case = data.draw(cases(stem))
    expect(case, run(case))


@pytest.mark.parametrize("stem", STEMS)
@EXAMPLES
@given(data=st.data(), padding=st.integers(0, 4))
def test_a_twin_never_lets_padding_reach_a_result(stem: str, data: st.DataObject, padding: int) -> None:
    case = data.draw(cases(stem))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "host_may_look", lambda tensor: False)
        result = run(case, padding=padding if case.row_ids else 0)  # no rows, no room for padding
    expect(case, result)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", STEMS)
@EXAMPLES
@given(data=st.data())
def test_a_twin_gives_the_same_on_a_gpu_without_waiting_for_it(stem: str, data: st.DataObject) -> None:
    case = data.draw(cases(stem))
    expect(case, run(case, device="cuda", never_waits=True))


@pytest.mark.parametrize("stem", sorted(set(STEMS) - {"bucketize"}))
def test_every_op_but_bucketize_counts_nothing(stem: str) -> None:
    counters: dict[str, torch.Tensor] = {}

    @settings(max_examples=5, deadline=None)
    @given(case=cases(stem))
    def count(case: Case) -> None:
        references = {name: to_value(each) for name, each in case.references.items()}
        context = Context(row_ids_B=torch.tensor(case.row_ids, dtype=torch.int64), counters=counters)
        apply(case.op, to_value(case.value), references, context)

    count()
    assert counters == {}


def test_bucketize_counts_nan_that_is_not_null() -> None:
    op = OPS["bucketize"].model_validate({"borders": [1.0]})
    context = Context(row_ids_B=torch.arange(3))
    values_B = torch.tensor([float("nan"), float("nan"), 2.0])
    apply(op, Dense(values_B=values_B, nulls_B=torch.tensor([True, False, False])), {}, context)
    apply(op, Dense(values_B=values_B), {}, context)
    assert int(context.counters["bucketize_nan"]) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("stem", "parameters"),
    [
        ("logit", {"eps": 1e-5}),
        *(("boxcox", {"lambda": power}) for power in (0, 0.25, 0.5, -0.5, 2, 3.7)),
        ("log", {"min": 1e-6}),
        ("log1p", {}),
        ("standardize", {"mean": 0.1, "std": 0.3}),
        ("min_max", {"lo": 0.1, "hi": 0.4}),
        ("onehot", {"low": 0, "high": 3, "classes": 7}),
        ("bucketize", {"borders": [0.1, 0.5, 2.5]}),
    ],
    ids=str,
)
def test_a_number_does_not_depend_on_its_place_in_a_batch(
    stem: str, parameters: dict[str, float], dtype: torch.dtype
) -> None:
    op = OPS[stem].model_validate(parameters)
    values_B = (torch.randn(1027, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2).exp().to(dtype)
    context = Context(row_ids_B=torch.arange(1027))

    def run_in_pieces(size: int) -> torch.Tensor:
        parts = [apply(op, Dense(values_B=part), {}, context) for part in values_B.chunk(-(-1027 // size))]
        return torch.cat([elements(part) for part in parts])

    whole = run_in_pieces(1027)
    assert torch.equal(run_in_pieces(1), whole)
    assert torch.equal(run_in_pieces(13), whole)
