"""A job's features as a typed graph of values: what compiling them yields. Holds no logic of its own.

Nodes are in topological order; a prefix that several features share is one chain of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rap_contract.ops import Op
from rap_contract.problem import Path
from rap_contract.types import ValueType

Nulls = Literal["propagate", "skip"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One value of the graph: a raw column, a collapse of element nulls, or an op's result."""

    index: int
    """Place in `FeatureGraph.nodes`; every input has a smaller one."""
    type: ValueType
    inputs: tuple[int, ...] = ()
    """Op: the chain's value, then the references. Collapse: the list, then lists parallel to it whose nulls count too."""
    column: str | None = None
    """Name of the raw column this node is."""
    weights: str | None = None
    """Column of the weights that go with a raw column's elements."""
    collapse: Nulls | None = None
    """Null elements end here: they make their row null (and its list empty), or are removed."""
    op: Op | None = None
    references: tuple[str, ...] = ()
    """Names by which the op knows `inputs[1:]`."""
    weighted: bool = False
    """The list carries weights."""


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """An embedding table; features that share it hold equal values."""

    name: str
    rows: int
    dim: int
    pooling: Literal["sum", "mean"]
    dtype: Literal["float32", "float16"]
    sharding: Literal["tableWise", "columnWise", "dataParallel"] = "tableWise"


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One input of the model: dense, or sparse with a table."""

    name: str
    column: str
    """The column its chain begins with."""
    node: int
    """Index of the node that holds its value."""
    path: Path
    """Its group in the document."""
    table: TableSpec | None = None
    out_of_range: Literal["refuse", "zero"] = "refuse"
    """Ids not proven to be rows of the table: none exist, or they read row 0."""
    width: int = 1
    """Dense: numbers a row."""

    @property
    def kind(self) -> Literal["dense", "sparse"]:
        return "dense" if self.table is None else "sparse"


@dataclass(frozen=True, kw_only=True)
class FeatureGraph:
    """All features of a job, typed and checked, with their shared chains."""

    nodes: tuple[Node, ...]
    features: tuple[FeatureSpec, ...]
    columns: Mapping[str, ValueType]
    """Declared columns, whether read or not."""
    label: str

    @cached_property
    def dense(self) -> tuple[FeatureSpec, ...]:
        return tuple(feature for feature in self.features if feature.table is None)

    @cached_property
    def sparse(self) -> tuple[FeatureSpec, ...]:
        return tuple(feature for feature in self.features if feature.table is not None)

    @cached_property
    def dense_width(self) -> int:
        """D: numbers a row of the dense input."""
        return sum(feature.width for feature in self.dense)

    @cached_property
    def tables(self) -> tuple[TableSpec, ...]:
        """Each table once, in the order of the features."""
        return tuple({f.table.name: f.table for f in self.sparse if f.table is not None}.values())

    @cached_property
    def weighted(self) -> bool:
        """Whether any sparse feature carries weights."""
        return any(self.nodes[feature.node].weighted for feature in self.sparse)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Columns the features read, weights among them, without the label; each once, in order of use."""
        names = [name for node in self.nodes for name in (node.column, node.weights) if name is not None]
        return tuple(dict.fromkeys(names))

    @cached_property
    def ops(self) -> tuple[Node, ...]:
        """The nodes that are ops; their number is the job's op count."""
        return tuple(node for node in self.nodes if node.op is not None)

    @cached_property
    def readers(self) -> Mapping[int, int]:
        """How many inputs of nodes, and features, each node is; by index."""
        read = [index for node in self.nodes for index in node.inputs]
        return Counter((*read, *(feature.node for feature in self.features)))

    def chain(self, feature: FeatureSpec) -> tuple[Node, ...]:
        """Every node the feature needs, references included, in topological order."""
        needed = {feature.node}
        for node in reversed(self.nodes[: feature.node + 1]):
            if node.index in needed:
                needed.update(node.inputs)
        return tuple(self.nodes[index] for index in sorted(needed))
