"""What a graph proves of a value (type, nulls, width, bounds) is true of every batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.cases import PARAMETERS, Draw, columns, numbers_of
from ops.rows import to_value
from ops.test_twins_equal_the_reference import assert_keeps_promise
from program.test_programs_equal_python import plan_graph
from rap_contract.graph import FeatureGraph
from rap_contract.ops import OPS, Op, OpError
from rap_contract.types import Dtype, ValueType
from rap_trainer.batch import RawBatch
from rap_trainer.ops.registry import apply
from rap_trainer.ops.value import Context, Value
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program.execution import evaluate

ALONE = sorted(set(PARAMETERS) - {"cartesian"})


@st.composite
def steps(draw: Draw, value: ValueType) -> Op:
    """Any op without references, fitting or not."""
    stem = draw(st.sampled_from(ALONE))
    parameters = PARAMETERS[stem](draw) if stem != "local_hour" else {}
    integer = value.dtype.is_integer
    if stem == "fill_null" and integer:
        parameters = {"value": draw(numbers_of(value.dtype))}
    if stem == "positive_modulus":
        parameters = {"n": draw(st.integers(1, 1000))}
    if stem == "clamp":
        lo, hi = sorted((draw(st.integers(-5, 20)), draw(st.integers(-5, 20))))
        parameters = {"lo": lo, "hi": hi}
    return OPS[stem].model_validate(parameters)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_chain_of_ops_keeps_every_promise_of_its_types(data: st.DataObject) -> None:
    column = data.draw(columns(tuple(Dtype), data.draw(st.booleans()), data.draw(st.integers(0, 5))))
    promised = ValueType(dtype=Dtype(column.dtype), is_list=column.is_list)
    value = to_value(column)
    context = Context(row_ids_B=torch.arange(len(column.rows)))
    for _ in range(data.draw(st.integers(1, 6))):
        op = data.draw(steps(promised))
        try:
            promised = op.output(promised, {})
        except OpError:
            continue
        if promised.width is not None and promised.width > 200:
            break
        value = apply(op, value, {}, context)
        assert_keeps_promise(value, promised)


@pytest.mark.parametrize("number", range(5))
def test_every_node_of_a_plan_keeps_its_promise(number: int) -> None:
    job = plan_job(number, max_rows=1000)
    graph = plan_graph(job)
    raw = synthetic_batch(job, 16 if number < 4 else 4, seed=7)
    values = node_values(graph, raw)
    for node in graph.nodes:
        if node.column is None:
            assert_keeps_promise(values[node.index], node.type)


def node_values(graph: FeatureGraph, raw: RawBatch) -> dict[int, Value]:
    """Every node's value, each from those before it."""
    values: dict[int, Value] = {}
    for node in graph.nodes:
        values[node.index] = evaluate(node, values, raw, Context(row_ids_B=raw.row_ids_B), graph)
    return values
