"""A profile times each kernel alone, over several batches in turn: each must read what the earlier kernels left of its own batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion.fusion_jobs import batch_of, dense, graph_of, sparse
from rap_trainer.profiling.launches import bound_programs
from rap_trainer.program import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
FILL: dict[str, Any] = {"fillNull": {"value": 0}}
HASH: dict[str, Any] = {"sigridHash": {"salt": 3}}
FEATURES = [
    dense("number", "f32", FILL),
    sparse("sampled", "ids", {"sample": {"rate": 0.5}}, HASH),
    sparse("filled", "more", FILL, HASH),
    sparse("twice", "more", {"sample": {"rate": 0.5}}, {"ngram": {"n": 2}}, HASH),
]


def test_each_kernel_of_each_batch_repeated_changes_no_result() -> None:
    graph, device = graph_of(FEATURES), torch.device("cpu")
    batches = [batch_of(graph, 37, seed=seed, nulls=("ids", "more"), device="cpu") for seed in (1, 2, 3)]
    sizes = [sum(batch.columns[name].values_N.numel() for name in ("ids", "more")) for batch in batches]
    assert len(set(sizes)) == len(sizes), "batches of different lists"
    expected = [Program(graph).run(batch).sparse for batch in batches]

    bound = bound_programs(graph, batches, device)
    for kernel in range(bound[0].program.num_kernels):
        for each in bound:
            each.launch(kernel)

    for each, sparse_features in zip(bound, expected, strict=True):
        num_ids = int(each.outputs.block_totals_P[0])
        assert torch.equal(each.outputs.ids_N[:num_ids], sparse_features.values())
        assert int(each.outputs.overflow) == 0
