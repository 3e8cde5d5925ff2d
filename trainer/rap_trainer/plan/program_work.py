"""What the eager program does for each feature, as one piece of work: element functions, bytes, calls. Pure.

The eager runtime preprocesses a batch in one piece, op by op, so it is one kernel to the planner, of the stage `program`. On a CPU
columns of one chain run side by side in blocks (`program/execution.py`), so calls grow with blocks, not with columns.
"""

from __future__ import annotations

from collections import Counter

from rap_contract.graph import FeatureGraph, Node

from rap_trainer.plan.launch_work import FLAG_BYTES, ID_BYTES, LENGTH_BYTES, NUMBER_BYTES, EntryWork, LaunchWork, Sizes
from rap_trainer.program.execution import BLOCK, LARGE
from rap_trainer.program.lanes import lanes_of

CALL = ":call"
"""A call of an op, whatever it is given."""
PAIRS = frozenset(
    {"has_id_overlap", "id_overlap_count", "get_max_count", "jaccard", "score_sum", "score_min", "score_max", "cosine"}
)
"""Ops that compare each element of one list with each of another."""


def program_work(graph: FeatureGraph, sizes: Sizes, *, side_by_side: bool) -> LaunchWork:
    """The whole program as one launch. `side_by_side`: as on a CPU; on a GPU node by node."""
    calls = _calls(graph, sizes) if side_by_side else {node.index: 1.0 for node in graph.nodes}
    seen: set[int] = set()
    entries = []
    for feature in graph.features:
        ops: Counter[str] = Counter()
        num_bytes = 0.0
        for node in graph.chain(feature):
            if node.index in seen:
                continue
            seen.add(node.index)
            num_bytes += sizes.rows * _bytes(node, sizes)
            ops[CALL] += calls.get(node.index, 1.0)  # type: ignore[assignment]  # Counter holds floats as well
            if node.op is not None:
                ops[node.op.stem] += int(sizes.rows * _elements(node, sizes))
        length = sizes.mean(feature.node) if feature.table is not None else feature.width
        num_bytes += sizes.rows * length * (ID_BYTES if feature.table is not None else NUMBER_BYTES)
        entries.append(EntryWork(feature=feature.name, num_bytes=num_bytes, ops=ops, num_tiles=1 / len(graph.features)))
    return LaunchWork(stage="program", wave=0, entries=tuple(entries))


def _calls(graph: FeatureGraph, sizes: Sizes) -> dict[int, float]:
    """Calls by node: those of a block are shared by its strands."""
    found: dict[int, float] = {}
    for lane in lanes_of(graph):
        size = sizes.rows * sizes.mean(lane.strands[0][0].inputs[0])
        together = 1.0 if size > LARGE else min(len(lane.strands), max(1.0, BLOCK // max(size, 1.0)))
        for strand in lane.strands:
            found.update({node.index: 1.0 / together for node in strand})
    return found


def _elements(node: Node, sizes: Sizes) -> float:
    """Elements a row an op handles."""
    lengths = [sizes.mean(index) for index in node.inputs]
    if node.op is not None and node.op.stem in PAIRS:
        return lengths[0] * lengths[1]
    return max([*lengths[:1], sizes.mean(node.index)])


def _bytes(node: Node, sizes: Sizes) -> float:
    """Bytes a row that a node makes, or of a raw column that are read."""
    length = sizes.mean(node.index)
    lists = LENGTH_BYTES if node.type.is_list else 0
    flags = FLAG_BYTES if node.column in sizes.nullable else 0
    return length * (node.type.dtype.num_bytes + flags) + lists
