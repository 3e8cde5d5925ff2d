"""Chains of ops become nodes of a graph, each typed; equal prefixes become the same nodes.

Takes features in an order that their references allow. Knows nothing of tables or the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rap_contract.features import Feature
from rap_contract.graph_names import Columns, Named, suggest
from rap_contract.graph_references import Fault, parameter_of
from rap_contract.graph_values import Node, Nulls
from rap_contract.ops import Op, OpError
from rap_contract.problem import Path, Problem
from rap_contract.types import Dtype, ValueType


class _Broken(Exception):
    """The chain cannot be typed further; its fault is recorded already."""


class Chains:
    """Builds the nodes of features, each after those it reads. Then read `nodes` and `faults`."""

    def __init__(self, columns: Columns, groups: Sequence[Feature], label: str) -> None:
        self.nodes: list[Node] = []
        self.faults: list[Fault] = []
        self._columns = columns
        self._groups = groups
        self._label = label
        self._known: dict[tuple[object, ...], int] = {}
        self._ends: dict[str, Node | None] = {}

    def node_of(self, feature: Named) -> Node | None:
        """The node with the feature's value, or None if its chain has a fault."""
        try:
            node = self._chain(feature)
        except _Broken:
            node = None
        self._ends.setdefault(feature.name, node)  # of two features with one name the first is meant
        return node

    def _chain(self, feature: Named) -> Node:
        group = self._groups[feature.group]
        node = self._start(feature, group)
        for place, step in enumerate(group.ops):
            op: Op = step.op if group.table is None else step.op.with_table_rows(feature.rows or 1)
            path: Path = (*feature.path, "ops", place, op.yaml_name())
            node = self._apply(feature, node, op, path)
        return self._collapsed(node, group.nulls)

    def _start(self, feature: Named, group: Feature) -> Node:
        """The node of the raw column, with its weights."""
        value = self._column(feature, feature.column, (*feature.path, "columns"))
        if feature.weights is None:
            if value is None:
                raise _Broken
            return self._node(Node(index=0, type=value, column=feature.column))
        path = (*feature.path, "weights")
        weights = self._column(feature, feature.weights, path)
        if value is None or weights is None:
            raise _Broken
        if not weights.is_list or weights.dtype is not Dtype.FLOAT32:
            message = f"weights {feature.weights} are {weights}"
            raise self._fault(feature, path, message, "declare the column as list<float32>")
        if not value.is_list:
            message = f"{value} {feature.column} cannot carry weights"
            raise self._fault(feature, path, message, f"declare {feature.column} as list<{value.dtype}>")
        if group.table is None:
            raise self._fault(feature, path, "a dense feature has no use for weights", "remove `weights`")
        return self._node(Node(index=0, type=value, column=feature.column, weights=feature.weights, weighted=True))

    def _column(self, feature: Named, name: str, path: Path) -> ValueType | None:
        """The declared type of a column, or None after recording what is wrong with its name."""
        if name == self._label:
            self._fault(feature, path, f"{name} is the label: a model must not see it", "leave it out")
            return None
        types = self._columns.types
        if name not in types and name not in self._columns.untyped:
            self._fault(feature, path, f"unknown column {name}", suggest(name, types))
        return types.get(name)

    def _apply(self, feature: Named, node: Node, op: Op, path: Path) -> Node:
        """The node of `op` applied to `node`."""
        nulls = self._groups[feature.group].nulls
        given = {"": node, **{name: self._reference(feature, name, op, path) for name in op.references()}}
        partners = {side: other for pair in op.parallel().items() for side, other in (pair, pair[::-1])}
        for name, other in partners.items():
            if _is_raw(given[name]) and not _is_raw(given[other]) and nulls == "skip":
                raise self._fault(
                    feature,
                    path,
                    f"nulls: skip would put {name or feature.column} out of step with {other or feature.column}",
                    "name columns for both, or use nulls: propagate",
                )
        if op.stem != "fill_null":
            collapsed = {
                name: self._collapsed(each, nulls, given.get(partners.get(name, name))) for name, each in given.items()
            }
            given = collapsed
        try:
            value = op.output(given[""].type, {name: given[name].type for name in op.references()})
        except OpError as error:
            raise self._fault(feature, path, str(error), error.hint) from error
        inputs = tuple(given[name].index for name in ("", *op.references()))
        weighted = value.is_list and any(each.weighted for each in given.values())
        return self._node(
            Node(index=0, type=value, inputs=inputs, op=op, references=op.references(), weighted=weighted)
        )

    def _reference(self, feature: Named, name: str, op: Op, path: Path) -> Node:
        """The value a reference names: a column, or else the feature of that name."""
        if name in self._columns.types or name in self._columns.untyped:
            value = self._column(feature, name, (*path, parameter_of(op, name)))
            if value is None:
                raise _Broken
            return self._node(Node(index=0, type=value, column=name))
        node = self._ends.get(name)
        if node is None:  # unknown, of a cycle or faulty: reported there
            raise _Broken
        return node

    def _collapsed(self, node: Node, nulls: Nulls, partner: Node | None = None) -> Node:
        """The node with null elements gone, and those that are null in its partner; the same one if it has none."""
        if not _is_raw(node):
            return node
        inputs = (node,) if partner is None or partner is node or not _is_raw(partner) else (node, partner)
        return self._node(
            Node(
                index=0,
                type=node.type.with_(nullable=nulls == "propagate"),
                inputs=tuple(each.index for each in inputs),
                collapse=nulls,
                weighted=node.weighted,
            )
        )

    def _node(self, node: Node) -> Node:
        """The node itself, or the equal one that exists."""
        parameters = None if node.op is None else (node.op.stem, node.op.model_dump_json())
        key = (node.inputs, node.column, node.weights, node.collapse, parameters)
        index = self._known.get(key)
        if index is None:
            index = len(self.nodes)
            self._known[key] = index
            self.nodes.append(replace(node, index=index))
        return self.nodes[index]

    def _fault(self, feature: Named, path: Path, message: str, hint: str) -> _Broken:
        self.faults.append(Fault(Problem(path=path, message=message, hint=hint), feature.column))
        return _Broken()


def _is_raw(node: Node) -> bool:
    """Whether the node is a list that may hold null elements."""
    return node.column is not None and node.type.is_list
