"""`compile_features`: a job's features as a typed graph, or everything that is wrong with them.

Pure and light: the same code checks a job in the operator and compiles it in the trainer.
"""

from __future__ import annotations

from dataclasses import replace

from rap_contract.features import Feature, Table
from rap_contract.graph_chains import Chains
from rap_contract.graph_names import Named, columns_of, features_of, label_problems, some
from rap_contract.graph_references import Fault, order_of
from rap_contract.graph_values import FeatureGraph, FeatureSpec, Node, TableSpec
from rap_contract.job import RAPJobSpec
from rap_contract.problem import Path, Problem

__all__ = ["FeatureGraph", "FeatureSpec", "Node", "TableSpec", "compile_features"]


def compile_features(spec: RAPJobSpec) -> tuple[FeatureGraph | None, tuple[Problem, ...]]:
    """The graph of a job's features, or None with every problem found, each with its YAML path."""
    columns, problems = columns_of(spec)
    problems += label_problems(spec, columns)
    named, wrong = features_of(spec)
    problems += wrong
    order = order_of(named, spec.features, columns)
    chains = Chains(columns, spec.features, spec.label)
    ends = {id(feature): chains.node_of(feature) for feature in order.features}
    outputs = _Outputs(spec.features)
    for feature in named:
        node = ends.get(id(feature))
        if node is not None:
            outputs.add(feature, node)
    problems += _merged([*order.faults, *chains.faults, *outputs.faults])
    problems += _table_problems(spec, named)
    problems += _model_problems(spec)
    if problems:
        return None, tuple(problems)
    graph = FeatureGraph(
        nodes=tuple(chains.nodes), features=tuple(outputs.features), columns=columns.types, label=spec.label
    )
    return graph, ()


class _Outputs:
    """Features made of the chains' ends, each checked against what the model takes."""

    def __init__(self, groups: list[Feature]) -> None:
        self.features: list[FeatureSpec] = []
        self.faults: list[Fault] = []
        self._groups = groups

    def add(self, named: Named, node: Node) -> None:
        table = self._groups[named.group].table
        if table is None:
            self._add_dense(named, node)
        elif named.rows is not None:
            self._add_sparse(named, node, table, named.rows)

    def _add_dense(self, named: Named, node: Node) -> None:
        value = node.type
        if value.is_list and (value.width is None or value.dtype.is_integer):
            hint = (
                "a list of ids is sparse: give `table`; a dense list needs a fixed length: end with firstx, or onehot"
            )
            self._fault(named, "table", f"{value} has no table", hint)
        elif value.nullable:
            hint = "begin the chain with fillNull: {value: 0}"
            self._fault(named, "ops", "a dense feature may not be null", hint)
        else:
            width = value.width if value.is_list and value.width is not None else 1
            self.features.append(
                FeatureSpec(name=named.name, column=named.column, node=node.index, path=named.path, width=width)
            )

    def _add_sparse(self, named: Named, node: Node, table: Table, rows: int) -> None:
        value = node.type
        if not value.dtype.is_integer:
            hint = "end the chain with integers (bucketize, sigridHash), or remove `table` for a dense feature"
            self._fault(named, "table", f"ids of a table are integers, this is {value}", hint)
            return
        proven = value.low is not None and value.high is not None and value.low >= 0 and value.high < rows
        if table.out_of_range == "refuse" and not proven:
            self._refuse(named, node, rows)
            return
        self.features.append(
            FeatureSpec(
                name=named.name,
                column=named.column,
                node=node.index,
                path=named.path,
                table=_table_of(named, table, rows),
                out_of_range="refuse" if proven else "zero",
            )
        )

    def _refuse(self, named: Named, node: Node, rows: int) -> None:
        low, high = node.type.low, node.type.high
        if low is None or high is None:
            message = f"ids are not proven to be within the table's {rows} rows"
            hint = "end the chain with sigridHash (its maxValue defaults to the rows), or set outOfRange: zero"
            self._fault(named, "table", message, hint)
        else:
            message = f"ids go from {low} to {high}, the table has {rows} rows"
            self._fault(named, "table.rows", message, "raise `rows`, lower the op's bound, or set outOfRange: zero")

    def _fault(self, named: Named, place: str, message: str, hint: str) -> None:
        path: Path = (*named.path, *place.split("."))
        self.faults.append(Fault(Problem(path=path, message=message, hint=hint), named.column))


def _merged(faults: list[Fault]) -> list[Problem]:
    """Equal faults of several columns as one problem that names the columns."""
    columns: dict[Problem, list[str]] = {}
    for fault in faults:
        columns.setdefault(fault.problem, []).append(fault.column)
    return [
        problem if _names(problem, names) else replace(problem, message=f"column {some(names)}: {problem.message}")
        for problem, names in columns.items()
    ]


def _names(problem: Problem, columns: list[str]) -> bool:
    return len(columns) == 1 and columns[0] in problem.message.split()


def _table_problems(spec: RAPJobSpec, named: list[Named]) -> list[Problem]:
    """Features that share a table but disagree on it."""
    problems: list[Problem] = []
    first: dict[str, tuple[TableSpec, Named]] = {}
    for feature in named:
        table = spec.features[feature.group].table
        if table is None or feature.rows is None:
            continue
        mine = _table_of(feature, table, feature.rows)
        theirs, owner = first.setdefault(mine.name, (mine, feature))
        for key in ("rows", "dim", "pooling", "dtype", "sharding"):
            here, there = getattr(mine, key), getattr(theirs, key)
            if here != there:
                message = f"table {mine.name} has {key} {here} here but {there} for feature {owner.name}"
                hint = "give both features the same value, or another table name"
                problem = Problem(path=(*feature.path, "table", key), message=message, hint=hint)
                if problem not in problems:
                    problems.append(problem)
    return problems


def _table_of(named: Named, table: Table, rows: int) -> TableSpec:
    return TableSpec(
        name=table.name or named.name,
        rows=rows,
        dim=table.dim,
        pooling=table.pooling,
        dtype=table.dtype,
        sharding=table.sharding,
    )


def _model_problems(spec: RAPJobSpec) -> list[Problem]:
    """What the built-in DLRM cannot take."""
    dlrm = spec.model.dlrm
    if dlrm is None:
        return []
    problems: list[Problem] = []
    path: Path = ("spec", "model", "dlrm")
    dims = dict.fromkeys(group.table.dim for group in spec.features if group.table is not None)
    for index, group in enumerate(spec.features):
        if group.table is not None and group.table.dim != dlrm.bottom[-1]:
            message = f"dim {group.table.dim} differs from the bottom MLP's last size {dlrm.bottom[-1]}"
            hint = (
                "the DLRM's interaction needs one dim everywhere: change this dim, or the end of spec.model.dlrm.bottom"
            )
            problems.append(Problem(path=("spec", "features", index, "table", "dim"), message=message, hint=hint))
    if dlrm.top[-1] != 1:
        message = f"the top MLP ends with {dlrm.top[-1]}"
        problems.append(
            Problem(path=(*path, "top", len(dlrm.top) - 1), message=message, hint="end it with 1: the logit of a click")
        )
    for kind, present in (("dense", any(g.table is None for g in spec.features)), ("sparse", bool(dims))):
        if not present:
            message = f"the DLRM needs at least one {kind} feature"
            hint = "add a feature without a table" if kind == "dense" else "add a feature with a table"
            problems.append(Problem(path=("spec", "features"), message=message, hint=hint))
    return problems
