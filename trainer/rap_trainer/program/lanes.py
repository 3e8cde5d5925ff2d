"""Which nodes of a graph run together: strands of nodes that follow each other, and lanes of equal strands.

A strand is a run of ops in which each is the only reader of the one before. Strands with the same ops
over the same types form a lane, and a lane runs once for all its columns: a small op costs as much to
call as to compute. Knows shapes of graphs only; touches no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rap_contract.graph import FeatureGraph, Node

from rap_trainer.ops.registry import FREE_PARAMETERS


@dataclass(frozen=True)
class Lane:
    """Strands of equal length that run as one; `strands[i][j]` and `strands[k][j]` apply the same op."""

    strands: tuple[tuple[Node, ...], ...]


def lanes_of(graph: FeatureGraph) -> tuple[Lane, ...]:
    """All nodes but the columns in lanes, each lane after those it reads."""
    readers = graph.readers
    strands: list[list[Node]] = []
    strand_of: dict[int, int] = {}
    level: list[int] = []
    for node in graph.nodes:
        if node.column is not None:
            continue
        before = strand_of.get(node.inputs[0])
        if before is not None and len(node.inputs) == 1 and readers[node.inputs[0]] == 1:
            strand_of[node.index] = before
            strands[before].append(node)
            continue
        sources = [strand_of[index] for index in node.inputs if index in strand_of]
        level.append(1 + max((level[source] for source in sources), default=0))
        strand_of[node.index] = len(strands)
        strands.append([node])
    lanes: dict[tuple[object, ...], list[tuple[Node, ...]]] = {}
    for place, strand in enumerate(strands):
        key = (level[place], _signature(strand, graph))
        lanes.setdefault(key, []).append(tuple(strand))
    ordered = sorted(lanes.items(), key=lambda item: item[0][0])  # type: ignore[arg-type,return-value]  # the level
    return tuple(Lane(tuple(members)) for _, members in ordered)


def _signature(strand: list[Node], graph: FeatureGraph) -> tuple[object, ...]:
    """Equal for strands that compute alike."""
    sources = [graph.nodes[index] for index in strand[0].inputs]
    shapes = tuple((source.type.dtype, source.type.is_list, source.weighted) for source in sources)
    return (shapes, tuple(_step(node) for node in strand))


def _step(node: Node) -> tuple[object, ...]:
    if node.op is None:
        return ("collapse", node.collapse)
    free: Mapping[str, frozenset[str]] = FREE_PARAMETERS
    names = set(node.op.references())
    fixed = {
        key: value
        for key, value in node.op.model_dump().items()
        if key not in free.get(node.op.stem, frozenset()) and not (isinstance(value, str) and value in names)
    }
    return (node.op.stem, repr(sorted(fixed.items())))
