"""Where sparse features go in the output buffers: the order and places the step's input dist wants. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rap_contract.graph import FeatureGraph, Node
from rap_contract.ops.cartesian import Cartesian
from rap_contract.ops.firstx import Firstx
from rap_contract.ops.onehot import Onehot


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive features, their ids packed one after the other: what goes to one owner."""

    features: tuple[str, ...]
    base: int = 0
    """Element of the ids buffer at which the block begins."""
    capacity: int | None = None
    """Elements the block may hold, more is overflow; None: as many as the buffer has."""
    lengths_row: int = 0
    """Row of the lengths buffer of the block's first feature; the others follow."""


@dataclass(frozen=True, kw_only=True)
class OutputLayout:
    """The blocks of an output. Every sparse feature is in exactly one."""

    blocks: tuple[Block, ...]
    padded: bool = False
    """One id a row and feature, [places][rows]: where a row has none, id 0, and 0 in the flags of presence."""
    write_lengths: bool = True
    """Whether constant lengths (of features that always hold the same number of ids) are written in every batch.

    False: the owner of the buffers has written them once, and every batch has the same number of rows.
    """
    single: frozenset[str] = frozenset()
    """List columns that hold at most one element a row: not proven by the graph, but the caller sees to it."""

    @classmethod
    def plain(cls, graph: FeatureGraph) -> OutputLayout:
        """One block in the order of the features: a KeyedJaggedTensor."""
        return cls(blocks=(Block(features=tuple(feature.name for feature in graph.sparse)),))

    @classmethod
    def one_id_each(cls, order: Sequence[str], *, single: frozenset[str] = frozenset()) -> OutputLayout:
        """[order][B], padded: the send buffer of an input dist of features with at most one id a row."""
        return cls(blocks=(Block(features=tuple(order)),), padded=True, write_lengths=False, single=single)

    def check(self, graph: FeatureGraph) -> None:
        """Raises ValueError unless each sparse feature has exactly one place that can hold it."""
        placed = [name for block in self.blocks for name in block.features]
        wanted = [feature.name for feature in graph.sparse]
        if sorted(placed) != sorted(wanted):
            missing, surplus = set(wanted) - set(placed), set(placed) - set(wanted)
            raise ValueError(
                "the layout must place each sparse feature once: "
                f"missing {sorted(missing)}, unknown {sorted(surplus)}, {len(placed)} places for {len(wanted)} features"
            )
        if not self.padded:
            return
        if graph.weighted:
            raise ValueError("a padded layout has no room for weights; use a layout of lists")
        for feature in graph.sparse:
            if not at_most_one(graph, graph.nodes[feature.node], self.single):
                raise ValueError(
                    f"feature {feature.name} may have several ids a row and has no place in a padded layout; "
                    "end its chain with firstx: {count: 1}, or use a layout of lists"
                )


def at_most_one(graph: FeatureGraph, node: Node, single: frozenset[str] = frozenset()) -> bool:
    """Whether no row of a value ever holds more than one element, if the columns `single` do not."""
    if not node.type.is_list or (node.type.width is not None and node.type.width <= 1):
        return True
    op = node.op
    if op is None:
        if node.column is not None:
            return node.column in single
        return node.collapse is not None and at_most_one(graph, graph.nodes[node.inputs[0]], single)
    if isinstance(op, Firstx) and op.n <= 1:
        return True
    if isinstance(op, Cartesian) and op.max == 1:
        return True
    if isinstance(op, Onehot) and op.classes > 1:
        return False
    lists = node.inputs if isinstance(op, Cartesian) else node.inputs[:1]
    return all(at_most_one(graph, graph.nodes[index], single) for index in lists)
