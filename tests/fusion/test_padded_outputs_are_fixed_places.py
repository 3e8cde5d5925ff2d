"""A padded layout: at most one id a row at a fixed place, and flags of presence, in the order an input dist sends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion.fusion_jobs import batch_of, dense, graph_of, sparse
from rap_trainer.fusion import FusedProgram, Limits, OutputLayout
from rap_trainer.program import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
FILL: dict[str, Any] = {"fillNull": {"value": 0}}
HASH: dict[str, Any] = {"sigridHash": {"salt": 3}}
FIRST: dict[str, Any] = {"firstx": {"n": 1}}
CLASSES: dict[str, Any] = {"onehot": {"low": 0, "high": 16, "classes": 8, "dtype": "int64"}}
FEATURES = [
    dense("number", "f32", FILL),
    sparse("first", "ids", FILL, HASH, FIRST),
    sparse("bare_first", "ids", HASH, FIRST),
    sparse("rounds", "more", FILL, *(2 * [CLASSES, {"ngram": {"n": 4}}, FIRST])),
    sparse("window", "more", FILL, {"ngram": {"n": 2, "combine": "hash"}}, FIRST, HASH),
    sparse("sampled", "ids", {"sample": {"rate": 0.5}}, HASH, FIRST),
    sparse("scalar", "i64", HASH),
    sparse("bucket", "f32", {"bucketize": {"borders": [0.5, 1.0]}}),
]


def padded_differs(nulls: tuple[str, ...], device: str) -> list[str]:
    """Features whose padded ids or flags differ from the eager lists."""
    graph = graph_of(FEATURES)
    names = [feature.name for feature in graph.sparse]
    order = names[::-1]
    raw = batch_of(graph, 37, seed=4, nulls=nulls, device=device)
    capacities = {n: c.values_N.numel() for n, c in raw.columns.items() if c.lengths_B is not None}
    limits = Limits(batch_size=37, capacities=capacities, nullable=frozenset(nulls))
    fused = FusedProgram(graph, torch.device(device), limits=limits, layout=OutputLayout.one_id_each(order))
    present_BF = torch.full((37, len(order)), 7, dtype=torch.int8, device=device)
    outputs = fused.new_outputs(present_BF=present_BF)
    fused.launch(fused.bind(raw), outputs)
    expected = Program(graph).run(raw).sparse
    lengths_FB = expected.lengths().view(len(names), 37).cpu()
    values = expected.values().cpu()
    differing = []
    begin = 0
    for place, name in enumerate(names):
        lengths_B = lengths_FB[place].to(torch.int64)
        padded_B = torch.zeros(37, dtype=torch.int64)
        end = begin + int(lengths_B.sum())
        padded_B[lengths_B > 0] = values[begin:end]
        begin = end
        at = order.index(name)
        same = torch.equal(outputs.ids_N.view(-1)[at * 37 : (at + 1) * 37].cpu(), padded_B)
        if not same or not torch.equal(present_BF[:, at].cpu().to(torch.int64), lengths_B):
            differing.append(name)
    return differing


NULLS = {"no nulls": (), "nulls": ("ids", "more", "i64", "f32")}


@pytest.mark.parametrize("nulls", NULLS.values(), ids=NULLS)
def test_a_padded_output_holds_each_id_at_its_place(nulls: tuple[str, ...]) -> None:
    assert padded_differs(nulls, "cpu") == []


@pytest.mark.gpu
@pytest.mark.parametrize("nulls", NULLS.values(), ids=NULLS)
def test_a_padded_output_holds_each_id_at_its_place_on_a_gpu(nulls: tuple[str, ...]) -> None:
    assert padded_differs(nulls, "cuda") == []


def test_a_feature_with_several_ids_has_no_padded_place() -> None:
    graph = graph_of([dense("number", "f32", FILL), sparse("many", "ids", FILL, HASH)])
    with pytest.raises(ValueError, match="many may have several ids a row"):
        FusedProgram(graph, torch.device("cpu"), limits=Limits(batch_size=4), layout=OutputLayout.one_id_each(["many"]))


def test_a_layout_that_forgets_a_feature_is_refused() -> None:
    graph = graph_of([dense("number", "f32", FILL), sparse("a", "i64", FILL, HASH)])
    with pytest.raises(ValueError, match=r"missing \['a'\]"):
        FusedProgram(graph, torch.device("cpu"), limits=Limits(batch_size=4), layout=OutputLayout.one_id_each([]))
