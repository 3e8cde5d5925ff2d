"""The compile baseline: a plan's ops as plain PyTorch under torch.compile with combo kernels and CUDA graphs, in front of the stock step.

As somebody writes it for torch.compile: functional, an expression a feature, all features in one function. Not the eager twins, which work in place
and on bits, for speed op by op, and of which inductor of PyTorch 2.11 takes minutes. Lists hold one element a row and are taken as numbers
(inductor fails on the offsets of real lists), and batches have one shape. What needs the number of ids on the host, leaving out rows
without one, stays outside, as in the eager program. Plans 0 and 1 have such a form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.ops.base import Op
from rap_contract.ops.bucketize import Bucketize
from rap_contract.ops.fill_null import FillNull
from rap_contract.ops.logit import Logit
from rap_contract.ops.sigrid_hash import SigridHash
from torchrec import KeyedJaggedTensor

from rap_trainer.batch import Column, ModelBatch, RawBatch
from rap_trainer.bench.stock import StockStep, rotate
from rap_trainer.bench.subject import Refused, Subject
from rap_trainer.model.shard import ShardedModel
from rap_trainer.ops.hashing import FIRST, LAST, K
from rap_trainer.world import World

OPTIONS: dict[str, Any] = {"triton.cudagraphs": True, "combo_kernels": True, "benchmark_combo_kernel": False}
MOST_BORDERS = 16
"""Of bucketize, each of which is a comparison."""


def compiled(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """The stock step behind compiled preprocessing. Raises Refused for plans without such a form."""
    step = StockStep(model, world.size)
    graph = graph_of_numbers(subject.document)
    host = [as_numbers(raw) for raw in subject.host]
    features = CompiledFeatures(graph, host[0])

    def one(raw: RawBatch) -> torch.Tensor:
        return step.train(features.run(raw.map(lambda tensor: tensor.to(world.device, non_blocking=True))))

    return rotate(one, tuple(host))


def graph_of_numbers(document: dict[str, Any]) -> FeatureGraph:
    """A plan's graph with each list column as a number, and without firstx, which then changes nothing. Raises Refused."""
    document = copy.deepcopy(document)
    spec = document["spec"]
    spec["columns"] = {
        name: declared.removeprefix("list<").removesuffix(">") for name, declared in spec["columns"].items()
    }
    for feature in spec["features"]:
        feature["ops"] = [op for op in feature["ops"] if op != {"firstx": {"count": 1}}]
    graph, problems = compile_features(RAPJob.model_validate(document).spec)
    if graph is None or any(node.type.is_list for node in graph.nodes):
        raise Refused("some features are lists, which inductor does not compile here")
    assert not problems
    return graph


def as_numbers(raw: RawBatch) -> RawBatch:
    """A batch with each list column as a number. Raises Refused if a list does not hold one element."""
    columns = {}
    for name, column in raw.columns.items():
        if column.lengths_B is not None and not bool((column.lengths_B == 1).all()):
            raise Refused(f"column {name} holds lists of several elements")
        columns[name] = Column(values_N=column.values_N, nulls_N=column.nulls_N)
    return RawBatch(
        columns=columns,
        row_ids_B=raw.row_ids_B,
        event_times_s_B=raw.event_times_s_B,
        num_rows=raw.num_rows,
        global_rows=raw.global_rows,
    )


class CompiledFeatures:
    """A graph of numbers compiled for batches of the shape of one."""

    def __init__(self, graph: FeatureGraph, example: RawBatch) -> None:
        """Raises Refused for an op that is not written here."""
        self._graph = graph
        names = [*dict.fromkeys((*graph.inputs, graph.label))]
        self._names = [(name, example.columns[name].nulls_N is not None) for name in names]
        function = plain_function(graph, self._names)
        self._compiled: Callable[..., tuple[torch.Tensor, ...]] = torch.compile(
            function, dynamic=False, options=OPTIONS
        )

    def run(self, raw: RawBatch) -> ModelBatch:
        """The model's input; waits for the device once, as the eager program does."""
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        tensors: list[torch.Tensor | None] = []
        for name, nullable in self._names:
            column = raw.columns[name]
            tensors += [column.values_N, column.nulls_N] if nullable else [column.values_N]
        dense_BD, labels_B, ids_FB, present_FB = self._compiled(*tensors)
        sparse = KeyedJaggedTensor(
            keys=[feature.name for feature in self._graph.sparse],
            values=ids_FB[present_FB],
            lengths=present_FB.to(torch.int32),
            stride=raw.num_rows,
        )
        return ModelBatch(
            dense_BD=dense_BD,
            sparse=sparse,
            labels_B=labels_B,
            global_rows=raw.global_rows,
            event_times_s_B=raw.event_times_s_B,
        )


def plain_function(
    graph: FeatureGraph, names: Sequence[tuple[str, bool]]
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(values, and null flags where a column has them, of these columns) -> dense [B, D], labels [B], ids and whether they are there [F * B].

    Raises Refused for an op that is not written here.
    """
    chains = {feature.node: _chain(graph, feature.node) for feature in (*graph.dense, *graph.sparse)}
    for _column, ops in chains.values():
        for op in ops:
            _check(op)

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        tensors = iter(given)
        columns = {name: (next(tensors), next(tensors) if nullable else None) for name, nullable in names}

        def of(node: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            column, ops = chains[node]
            values, nulls = columns[column]
            for op in ops:
                values, nulls = plain(op, values, nulls)
            return values, nulls

        numbers = [of(feature.node)[0] for feature in graph.dense]
        ids = [of(feature.node) for feature in graph.sparse]
        there = [torch.ones_like(each, dtype=torch.bool) if nulls is None else ~nulls for each, nulls in ids]
        ids_FB = torch.cat([each.to(torch.int64) for each, _ in ids])
        return torch.stack(numbers, 1), columns[graph.label][0].to(torch.float32), ids_FB, torch.cat(there)

    return run


def _chain(graph: FeatureGraph, node: int) -> tuple[str, list[Op]]:
    """The column a number comes from, and the ops on its way. Raises Refused for an op of several columns."""
    ops: list[Op] = []
    here = graph.nodes[node]
    while here.column is None:
        if len(here.inputs) != 1:
            raise Refused("a feature of several columns is not written for torch.compile here")
        if here.op is not None:
            ops.insert(0, here.op)
        here = graph.nodes[here.inputs[0]]
    return here.column, ops


def _check(op: Op) -> None:
    is_written = (
        isinstance(op, Logit | SigridHash)
        or (isinstance(op, FillNull) and not op.nan)
        or (isinstance(op, Bucketize) and len(set(op.borders)) == len(op.borders) <= MOST_BORDERS)
    )
    if not is_written:
        raise Refused(f"op {op.stem} is not written for torch.compile here")


def plain(op: Op, values: torch.Tensor, nulls: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An op on numbers and their null flags, as functional PyTorch."""
    if isinstance(op, FillNull):
        return (values, None) if nulls is None else (torch.where(nulls, op.value, values).to(values.dtype), None)
    if isinstance(op, Logit):
        return torch.logit(values, op.eps), nulls
    if isinstance(op, Bucketize):
        beyond = [values > border if op.side == "left" else values >= border for border in op.borders]
        return torch.stack(beyond).sum(0), nulls
    assert isinstance(op, SigridHash)
    assert op.max_value is not None
    return hashed(values.to(torch.int64), op.max_value, salt=op.salt), nulls


def shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hashed(x: torch.Tensor, rows: int, *, salt: int = 0) -> torch.Tensor:
    """sigrid_hash of int64 ids: [0, rows)."""
    x = x * FIRST - 1  # ~x + (x << 21): each further use of x doubles what inductor traces
    x = (x ^ shifted(x, 24)) * (1 + (1 << 3) + (1 << 8))
    x = (x ^ shifted(x, 14)) * (1 + (1 << 2) + (1 << 4))
    x = (x ^ shifted(x, 28)) * LAST
    x = (x ^ salt if salt else x) * K
    x = x ^ shifted(x, 47)
    x = (x ^ salt if salt else x) * K
    x = (x ^ shifted(x, 47)) * K
    return torch.remainder(x, rows)
