"""A feature graph and its kernels as a `Task`: raw and made bytes of each feature, where its table is, what ranks hold.

Sizes are means: list lengths come from the workload and follow the chain. What a feature asks of each kernel is given: only
who makes the kernels knows it. Knows no device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rap_contract.graph import FeatureGraph, FeatureSpec, Node
from rap_contract.ops.cartesian import Cartesian
from rap_contract.ops.firstx import Firstx
from rap_contract.ops.ngram import Ngram
from rap_contract.ops.onehot import Onehot
from rap_contract.ops.sample import Sample
from rap_contract.plan import FusedKernel
from rap_contract.profile import Workload

from rap_planner.lengths import Lengths, at_most, crossed, grams, mean, of_column
from rap_planner.task import Item, Piece, Task

ID_BYTES, NUMBER_BYTES, LENGTH_BYTES = 8, 4, 4  # int64 ids, float32 dense values, int32 lengths and offsets
STATE_BYTES = 4  # of rowwise Adagrad, a float32 a row


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where tables live, and what the ranks have to spare."""

    num_ranks: int
    owners: Mapping[str, int] = field(default_factory=dict)
    """Rank of each table, by its name: what TorchRec's planner decided."""
    embedding_seconds: float = 0.0
    """Of the step, spent in tables by the rank with most of them."""
    memory_bytes: float = float("inf")


def task_of(
    job: str,
    graph: FeatureGraph,
    kernels: Sequence[FusedKernel],
    *,
    pieces: Mapping[str, Sequence[Piece]],
    batch_size: int,
    workload: Workload,
    ranks: Ranks,
) -> Task:
    """The task of a job. Batch size is rows of one rank; `pieces` are a feature's work in the kernels, by its name."""
    lengths = mean_lengths(graph, workload)
    items = tuple(
        _item(graph, feature, pieces.get(feature.name, ()), lengths=lengths, rows=batch_size, owners=ranks.owners)
        for feature in graph.features
    )
    return Task(
        job=job,
        items=items,
        kernels=tuple(kernels),
        idle_seconds=_idle(graph, items, ranks),
        reserved_bytes=_reserved(graph, ranks),
        memory_bytes=ranks.memory_bytes,
    )


def balanced_owners(graph: FeatureGraph, num_ranks: int) -> dict[str, int]:
    """Tables dealt to ranks, the largest first, each to the rank with least so far: for when no sharding is given."""
    load = [0] * num_ranks
    owners: dict[str, int] = {}
    for table in sorted(graph.tables, key=lambda table: (-table.rows * table.dim, table.name)):
        owners[table.name] = min(range(num_ranks), key=lambda rank: (load[rank], rank))
        load[owners[table.name]] += table.rows * table.dim
    return owners


def _item(
    graph: FeatureGraph,
    feature: FeatureSpec,
    pieces: Sequence[Piece],
    *,
    lengths: Sequence[float],
    rows: int,
    owners: Mapping[str, int],
) -> Item:
    chain = graph.chain(feature)
    raw = rows * sum(_value_bytes(node, lengths) for node in chain if node.column is not None)
    elements_out = rows * (lengths[feature.node] if feature.table else feature.width)
    if feature.table is None:
        out = elements_out * NUMBER_BYTES
    else:
        out = elements_out * (ID_BYTES + (NUMBER_BYTES if graph.nodes[feature.node].weighted else 0))
        out += rows * LENGTH_BYTES
    return Item(
        name=feature.name,
        group=str(feature.path[-1]) if feature.path else feature.name,
        chain=" > ".join(node.op.yaml_name() for node in chain if node.op is not None) or "(as it is)",
        pieces=tuple(pieces),
        raw_bytes=raw,
        out_bytes=out,
        owner=owners.get(feature.table.name) if feature.table is not None else None,
    )


def _value_bytes(node: Node, lengths: Sequence[float]) -> float:
    """Bytes a row of a raw column: elements, a null flag each, weights, and the length of a list."""
    per_element = node.type.dtype.num_bytes + 1 + (NUMBER_BYTES if node.weights else 0)
    return lengths[node.index] * per_element + (LENGTH_BYTES if node.type.is_list else 0)


def mean_lengths(graph: FeatureGraph, workload: Workload) -> list[float]:
    """Mean elements a row of each node."""
    return [mean(each) for each in node_lengths(graph, workload)]


def node_lengths(graph: FeatureGraph, workload: Workload) -> list[Lengths]:
    """How long the lists of each node are."""
    lengths: list[Lengths] = []
    for node in graph.nodes:
        lengths.append(_lengths(node, [lengths[i] for i in node.inputs], workload))
    return lengths


def _lengths(node: Node, inputs: list[Lengths], workload: Workload) -> Lengths:
    if not node.type.is_list:
        return (1.0,)
    if node.column is not None:
        return of_column(workload.of(node.column))
    first = inputs[0]
    op = node.op
    if node.type.width is not None:
        return (float(node.type.width),)
    if isinstance(op, Firstx):
        return at_most(first, op.n)
    if isinstance(op, Ngram):
        return grams(first, op.n)
    if isinstance(op, Onehot):
        return tuple(length * op.classes for length in first)
    if isinstance(op, Cartesian):
        return crossed(first, inputs[1], op.max)
    if isinstance(op, Sample):
        return tuple(length * op.rate for length in first)
    return first


def _idle(graph: FeatureGraph, items: Sequence[Item], ranks: Ranks) -> tuple[float, ...]:
    """What a rank's tables ask less than those of the busiest rank: lookups and updates go by ids times dim."""
    asked = [0.0] * ranks.num_ranks
    for feature, item in zip(graph.features, items, strict=True):
        if feature.table is not None and item.owner is not None:
            asked[item.owner] += item.out_bytes * feature.table.dim
    most = max(asked, default=0.0)
    return tuple(ranks.embedding_seconds * (1 - mine / most) if most else 0.0 for mine in asked)


def _reserved(graph: FeatureGraph, ranks: Ranks) -> tuple[float, ...]:
    """Bytes of tables and their optimizer's rows."""
    sizes = [0.0] * ranks.num_ranks
    for table in graph.tables:
        width = 4 if table.dtype == "float32" else 2
        sizes[ranks.owners.get(table.name, 0)] += table.rows * (table.dim * width + STATE_BYTES)
    return tuple(sizes)
