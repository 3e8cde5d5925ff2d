"""Nodes run on values: one by one, or a lane of equal strands as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rap_contract.graph import FeatureGraph, Node
from rap_contract.ops import Op

from rap_trainer.batch import RawBatch
from rap_trainer.ops.nulls import collapse
from rap_trainer.ops.registry import SIDE_BY_SIDE, apply
from rap_trainer.ops.value import Context, Dense, Jagged, Value, elements
from rap_trainer.program.columns import bind
from rap_trainer.program.lanes import Lane
from rap_trainer.program.side_by_side import Joined, Piece, joined, runs, sizes_of

BLOCK = 131_072  # elements a lane handles at once: 1 MiB of int64, so that an op and its scratch stay in a 2 MiB cache
LARGE = 32_768  # elements from which a column runs alone: joining costs more than the calls it saves
# both: plan 1 on one Xeon core, 4096 rows: 4.0 ms with blocks of 32768, 3.4 with 65536, 3.3 with 131072 (November 2026)


def evaluate(node: Node, values: Mapping[int, Value], raw: RawBatch, context: Context, graph: FeatureGraph) -> Value:
    """One node's value from those of its inputs."""
    if node.column is not None:
        return bind(raw, node.column, graph.columns[node.column], node.weights)
    return _step([node], [values[index] for index in node.inputs], context)


def run_lane(lane: Lane, values: Mapping[int, Value | Piece], context: Context) -> dict[int, Value | Piece]:
    """The values of a lane's last nodes, a cache-sized block of strands at a time."""
    ends: dict[int, Value | Piece] = {}
    for strands in _blocks(lane, values):
        copies = len(strands)
        beside = replace(context, copies=copies)
        columns = [[values[index] for index in column] for column in zip(*(s[0].inputs for s in strands), strict=True)]
        given = [_together(column) for column in columns]
        sizes = [_size(piece) for piece in columns[0]] if not isinstance(columns[0][0], Piece) else None
        for nodes in zip(*strands, strict=True):
            result = _step(nodes, given, beside, sizes)
            sizes = sizes if _same_lists(result, given[0]) else None
            given = [result]
        if copies == 1:
            ends[strands[0][-1].index] = given[0]
        else:
            whole = Joined(given[0], copies)
            ends.update((strand[-1].index, Piece(whole, place)) for place, strand in enumerate(strands))
    return ends


def _same_lists(after: Value, before: Value) -> bool:
    """Whether an op kept each column's number of elements, as far as is known without looking."""
    if isinstance(after, Jagged):
        return isinstance(before, Jagged) and after.lengths_B is before.lengths_B
    return isinstance(before, Dense)


def _together(pieces: Sequence[Value | Piece]) -> Value:
    found = runs(pieces)
    return found[0].value if len(found) == 1 else joined([each.value for each in found])


def _blocks(lane: Lane, values: Mapping[int, Value | Piece]) -> list[list[tuple[Node, ...]]]:
    if len(lane.strands) == 1:
        return [list(lane.strands)]
    blocks: list[list[tuple[Node, ...]]] = []
    room = 0
    for strand in lane.strands:
        size = _size(values[strand[0].inputs[0]])
        if not blocks or size > room or size > LARGE:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(strand)
        room -= size if size <= LARGE else BLOCK
    return blocks


def _size(piece: Value | Piece) -> int:
    """Elements of a column, about; the mean of its whole if it is a piece."""
    if isinstance(piece, Piece):
        return elements(piece.whole.value).numel() // piece.whole.copies
    return elements(piece).numel()


def _step(nodes: Sequence[Node], given: Sequence[Value], context: Context, sizes: Sequence[int] | None = None) -> Value:
    """One step of equal nodes on their joined inputs; `sizes` are the elements of each, None where unknown."""
    node = nodes[0]
    if node.op is None:
        assert node.collapse is not None
        lists = [each for each in given if isinstance(each, Jagged)]
        assert len(lists) == len(given)
        return collapse(lists[0], node.collapse, lists[1] if len(lists) > 1 else None)
    ops: list[Op] = [each.op for each in nodes if each.op is not None]
    if len(nodes) > 1 and node.op.stem in SIDE_BY_SIDE:
        return SIDE_BY_SIDE[node.op.stem](ops, given[0], sizes or sizes_of(given[0], context.copies))
    return apply(node.op, given[0], dict(zip(node.references, given[1:], strict=True)), context)
