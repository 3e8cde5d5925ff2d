"""Equal beginnings of chains are computed once; what differs, however little, is not shared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from program.small_job import DENSE, FILL, SPARSE, graph_of
from program.test_programs_equal_python import plan_graph
from rap_contract.graph import Node
from rap_contract.ops import OPS
from rap_trainer.batch import Column
from rap_trainer.ops import segments
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program, execution

TABLE = {"rows": 100, "dim": 8}


def feature(name: str, *ops: Any, column: str = "cat_0", **fields: Any) -> dict[str, Any]:
    return {"name": name, "columns": [column], "ops": list(ops), "table": TABLE, **fields}


def stems(nodes: tuple[Node, ...]) -> list[str]:
    return [node.op.stem for node in nodes if node.op is not None]


def test_a_common_prefix_is_one_chain_of_nodes() -> None:
    first = feature("first", FILL, {"sigridHash": {"maxValue": 50}}, {"firstx": {"count": 1}})
    second = feature("second", FILL, {"sigridHash": {"maxValue": 50}}, {"firstx": {"count": 2}})
    graph = graph_of(DENSE, first, second)
    assert stems(graph.ops) == ["fill_null"] * 4 + ["sigrid_hash", "firstx", "firstx"]


def test_a_hash_without_a_max_value_is_shared_only_among_tables_of_equal_rows() -> None:
    features = [
        feature(name, {"sigridHash": {}}, table={**TABLE, "rows": rows})
        for name, rows in zip("abc", (50, 60, 50), strict=True)
    ]
    assert stems(graph_of(DENSE, *features).ops).count("sigrid_hash") == 2


def test_null_rules_and_weights_keep_prefixes_apart() -> None:
    chain: list[Any] = [{"sigridHash": {}}]
    features = [
        feature("plain", *chain),
        feature("skipping", *chain, nulls="skip"),
        feature("weighted", *chain, weights="scores_0"),
    ]
    graph = graph_of(DENSE, *features)
    assert stems(graph.ops).count("sigrid_hash") == 3
    assert [graph.nodes[each.node].weighted for each in graph.sparse] == [False, False, True]
    assert graph.weighted


def test_a_feature_that_reads_another_shares_its_nodes() -> None:
    head = feature("head", FILL, {"firstx": {"count": 2}}, column="cat_1", table={**TABLE, "outOfRange": "zero"})
    cross = feature("cross", FILL, {"cartesian": {"with": "head", "max": 4}}, {"sigridHash": {}})
    graph = graph_of(DENSE, cross, head)
    assert [each.name for each in graph.sparse] == ["cross", "head"]
    chain = graph.chain(graph.sparse[0])
    assert graph.sparse[1].node in {node.index for node in chain}
    assert Counter(stems(chain)) == {"fill_null": 2, "firstx": 1, "cartesian": 1, "sigrid_hash": 1}


def test_a_column_is_meant_where_a_feature_has_the_same_name() -> None:
    cross = feature("cross", {"cartesian": {"with": "cat_1", "max": 4}}, {"sigridHash": {}})
    graph = graph_of(DENSE, SPARSE, cross)
    assert stems(graph.chain(graph.sparse[-1])) == ["cartesian", "sigrid_hash"]


def test_every_node_comes_after_its_inputs() -> None:
    for number in range(5):
        for node in plan_graph(plan_job(number)).nodes:
            assert all(index < node.index for index in node.inputs)


def test_inputs_are_the_columns_that_are_read() -> None:
    graph = graph_of(DENSE, feature("x", {"sigridHash": {}}, column="cat_2", weights="scores_1"))
    assert graph.inputs == ("int_0", "int_1", "int_2", "cat_2", "scores_1")
    assert Program(graph).inputs == (*graph.inputs, "label")


def test_features_of_one_table_name_share_it() -> None:
    features = [
        feature(name, {"sigridHash": {}}, column=f"cat_{i}", table={**TABLE, "name": "t"})
        for i, name in enumerate("ab")
    ]
    graph = graph_of(DENSE, *features)
    assert [table.name for table in graph.tables] == ["t"]


@pytest.mark.parametrize("one_by_one", [False, True], ids=["lanes", "nodes"])
@pytest.mark.parametrize("number", range(5))
def test_a_program_runs_every_node_once(number: int, one_by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = plan_job(number, max_rows=1000)
    graph = plan_graph(job)
    ran: Counter[int] = Counter()
    step = execution._step

    def counted(nodes: Any, *given: Any) -> Any:
        ran.update(node.index for node in nodes)
        return step(nodes, *given)

    monkeypatch.setattr(execution, "_step", counted)
    if one_by_one:
        monkeypatch.setattr(segments, "host_may_look", lambda tensor: False)
    Program(graph).run(synthetic_batch(job, 3))
    assert ran == Counter(node.index for node in graph.nodes if node.column is None)


def test_a_program_counts_the_ops_of_each_feature() -> None:
    program = Program(plan_graph(plan_job(0)))
    assert program.nodes_per_feature["int_3"] == 2
    assert program.nodes_per_feature["cat_3"] == 3
    assert program.nodes_per_feature["int_0_bucket"] == 1


@pytest.mark.parametrize(
    ("number", "dense", "sparse"), [(0, 13, 27), (1, 13, 27), (2, 26, 52), (3, 52, 104), (4, 200, 400)]
)
def test_a_plan_has_its_features(number: int, dense: int, sparse: int) -> None:
    graph = plan_graph(plan_job(number))
    assert (len(graph.dense), len(graph.sparse)) == (dense, sparse)


def test_plan_4_has_every_op_and_lists_of_mean_length_20() -> None:
    job = plan_job(4)
    assert {node.op.stem for node in plan_graph(job).ops if node.op} == set(OPS)
    columns = [c for name, c in synthetic_batch(job, 200).columns.items() if name.startswith("ids_")]
    present = [column.lengths_B[~null_rows(column)] for column in columns if column.lengths_B is not None]
    lengths = torch.cat(present).to(torch.float32)
    assert lengths.mean().item() == pytest.approx(20, abs=0.5)
    assert lengths.max().item() == 100


def null_rows(column: Column) -> torch.Tensor:
    assert column.lengths_B is not None
    assert column.nulls_N is not None
    ends = torch.cumsum(column.lengths_B, 0) - 1
    return (column.lengths_B == 1) & column.nulls_N[ends.clamp(min=0)]


def test_tables_are_capped() -> None:
    assert max(table.rows for table in plan_graph(plan_job(1, max_rows=500)).tables) == 500
    with pytest.raises(ValueError, match="plans are 0 to 4, got 5"):
        plan_job(5)


def test_synthetic_batches_are_equal_for_equal_seeds() -> None:
    job = plan_job(4)
    first, again, other = (synthetic_batch(job, 5, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(c.values_N, again.columns[name].values_N) for name, c in first.columns.items())
    assert not torch.equal(first.columns["num_0"].values_N, other.columns["num_0"].values_N)
