"""The compile baseline: a plan's ops traced to one graph, under torch.compile with combo kernels and CUDA graphs.

What needs the ids' number on the host, the removal of padding before the model, stays outside, as in the eager program.
Only batches of one shape: lists whose number of elements varies would be compiled for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rap_contract.graph import FeatureGraph
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torchrec import KeyedJaggedTensor

from rap_trainer.batch import Column, ModelBatch, RawBatch
from rap_trainer.bench.stock import StockStep, rotate
from rap_trainer.bench.subject import Refused, Subject
from rap_trainer.model.shard import ShardedModel
from rap_trainer.ops.segments import rows_of
from rap_trainer.ops.value import Constants, Context, Dense, Value
from rap_trainer.program.columns import bind
from rap_trainer.program.execution import evaluate
from rap_trainer.program.outputs import as_list, dense_matrix
from rap_trainer.world import World

Tensors = tuple[torch.Tensor, ...]
FIELDS = ("values_N", "nulls_N", "lengths_B")
OPTIONS: dict[str, Any] = {"triton.cudagraphs": True, "combo_kernels": True, "benchmark_combo_kernel": False}


def compiled(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """The stock step behind compiled preprocessing. Raises Refused for batches of several shapes."""
    step = StockStep(model, world.size)
    first = subject.host[0].map(lambda tensor: tensor.to(world.device))
    if any(shapes_of(raw) != shapes_of(subject.host[0]) for raw in subject.host):
        raise Refused("its lists hold another number of elements in every batch, and each would be compiled anew")
    features = CompiledFeatures(subject.graph, first)

    def one(raw: RawBatch) -> torch.Tensor:
        return step.train(features.run(raw.map(lambda tensor: tensor.to(world.device, non_blocking=True))))

    return rotate(one, subject.host)


def shapes_of(raw: RawBatch) -> tuple[torch.Size, ...]:
    """The shapes of all tensors of a batch."""
    return tuple(tensor.shape for tensor in _tensors(raw))


class CompiledFeatures:
    """A feature graph compiled for batches of the shape of one."""

    def __init__(self, graph: FeatureGraph, example: RawBatch, *, options: dict[str, Any] | None = None) -> None:
        self._graph = graph
        self._function = features_function(graph, example)
        tensors = _tensors(example)
        constants: Constants = {}
        self._function(constants, *tensors)  # constants of ops are made once, outside the traced graph
        traced = traced_graph(lambda *given: self._function(constants, *given), tensors)
        self._compiled = torch.compile(traced, dynamic=False, options=OPTIONS if options is None else options)

    def run(self, raw: RawBatch) -> ModelBatch:
        """The model's input; waits for the device once, as the eager program does."""
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        dense_BD, ids_N, lengths, labels_B, keep_N = self._compiled(*_tensors(raw))
        index_M = keep_N.nonzero().squeeze(1)
        if index_M.numel() != ids_N.numel():
            ids_N = ids_N[index_M]
        sparse = KeyedJaggedTensor(
            keys=[feature.name for feature in self._graph.sparse], values=ids_N, lengths=lengths, stride=raw.num_rows
        )
        return ModelBatch(
            dense_BD=dense_BD,
            sparse=sparse,
            labels_B=labels_B,
            global_rows=raw.global_rows,
            event_times_s_B=raw.event_times_s_B,
        )


def traced_graph(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """A function's ATen operations on such tensors, none in place, in a form inductor takes."""
    traced = make_fx(functionalize(function))(*tensors)
    for node in traced.graph.nodes:
        if node.target is torch.ops.aten.view.dtype and node.args[0].meta["val"].dtype is torch.bool:
            node.target = torch.ops.aten._to_copy.default  # inductor knows no bits of bool; a copy gives the same
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
    traced.recompile()
    return traced


def features_function(graph: FeatureGraph, example: RawBatch) -> Callable[..., Tensors]:
    """(constants, tensors of a batch) -> dense matrix, padded ids, lengths, labels, which ids are no padding."""
    if graph.weighted:
        raise Refused("features with weights have no compiled form here")
    places = [(name, field) for name, column in example.columns.items() for field in FIELDS if _has(column, field)]

    def run(constants: Constants, *tensors: torch.Tensor) -> Tensors:
        given = dict(zip(places, tensors[:-1], strict=True))
        columns = {
            name: Column(
                values_N=given[name, "values_N"],
                nulls_N=given.get((name, "nulls_N")),
                lengths_B=given.get((name, "lengths_B")),
            )
            for name in example.columns
        }
        raw = RawBatch(
            columns=columns,
            row_ids_B=tensors[-1],
            event_times_s_B=example.event_times_s_B,
            num_rows=example.num_rows,
            global_rows=example.global_rows,
        )
        context = Context(row_ids_B=raw.row_ids_B, constants=constants)
        values: dict[int, Value] = {}
        for node in graph.nodes:
            values[node.index] = evaluate(node, values, raw, context, graph)
        label = bind(raw, graph.label, graph.columns[graph.label])
        assert isinstance(label, Dense)
        dense_BD = dense_matrix(graph.dense, [values[feature.node] for feature in graph.dense], raw.row_ids_B)
        return (dense_BD, *_padded_ids(graph, values), label.values_B.to(torch.float32), *_kept(graph, values))

    return run


def _padded_ids(graph: FeatureGraph, values: dict[int, Value]) -> Tensors:
    ids: list[torch.Tensor] = []
    lengths: list[torch.Tensor] = []
    for feature in graph.sparse:
        lists = as_list(values[feature.node])
        ids_N = lists.values_N.to(torch.int64)
        if feature.out_of_range == "zero" and feature.table is not None:
            ids_N = ids_N.masked_fill((ids_N < 0) | (ids_N >= feature.table.rows), 0)
        ids.append(ids_N)
        lengths.append(lists.lengths_B.to(torch.int32))
    return torch.cat(ids), torch.cat(lengths)


def _kept(graph: FeatureGraph, values: dict[int, Value]) -> Tensors:
    lists = [as_list(values[feature.node]) for feature in graph.sparse]
    keep = [rows_of(each.lengths_B, each.values_N.numel()) < each.lengths_B.numel() for each in lists]
    return (torch.cat(keep),)


def _tensors(raw: RawBatch) -> list[torch.Tensor]:
    columns = [getattr(column, field) for column in raw.columns.values() for field in FIELDS if _has(column, field)]
    return [*columns, raw.row_ids_B]


def _has(column: Column, field: str) -> bool:
    return getattr(column, field) is not None
