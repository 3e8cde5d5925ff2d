"""The compile baseline: a plan's ops traced to one graph, under torch.compile with combo kernels and CUDA graphs.

For plans whose lists hold one element a row and whose features are numbers: the lists are taken as numbers, as somebody
who compiles would write it (inductor of PyTorch 2.11 fails on the offsets of real lists), and batches have one shape.
What needs the number of ids on the host, leaving out rows without one, stays outside, as in the eager program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torchrec import KeyedJaggedTensor

from rap_trainer.batch import Column, ModelBatch, RawBatch
from rap_trainer.bench.stock import StockStep, rotate
from rap_trainer.bench.subject import Refused, Subject
from rap_trainer.model.shard import ShardedModel
from rap_trainer.ops.value import Constants, Context, Dense, Value
from rap_trainer.program.columns import bind
from rap_trainer.program.execution import evaluate
from rap_trainer.program.outputs import dense_matrix
from rap_trainer.world import World

Tensors = tuple[torch.Tensor, ...]
OPTIONS: dict[str, Any] = {"triton.cudagraphs": True, "combo_kernels": True, "benchmark_combo_kernel": False}


def compiled(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """The stock step behind compiled preprocessing. Raises Refused for plans without such a form."""
    step = StockStep(model, world.size)
    graph = graph_of_numbers(subject.document)
    host = [as_numbers(raw) for raw in subject.host]
    features = CompiledFeatures(graph, host[0].map(lambda tensor: tensor.to(world.device)))

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

    def __init__(self, graph: FeatureGraph, example: RawBatch, *, options: dict[str, Any] | None = None) -> None:
        self._graph = graph
        function = features_function(graph, example)
        tensors = _tensors(example)
        constants: Constants = {}
        function(constants, *tensors)  # constants of ops are made once, outside the traced graph
        traced = traced_graph(lambda *given: function(constants, *given), tensors)
        self._compiled = torch.compile(traced, dynamic=False, options=OPTIONS if options is None else options)

    def run(self, raw: RawBatch) -> ModelBatch:
        """The model's input; waits for the device once, as the eager program does."""
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        dense_BD, ids_FB, present_FB, labels_B = self._compiled(*_tensors(raw))
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


def traced_graph(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """A function's ATen operations on such tensors, none in place, in a form inductor takes."""
    traced = make_fx(functionalize(function))(*tensors)
    for node in traced.graph.nodes:
        if node.target is torch.ops.aten.view.dtype and node.args[0].meta["val"].dtype is torch.bool:
            node.target = torch.ops.aten._to_copy.default  # inductor knows no bits of bool; a copy gives the same
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
        elif node.target is torch.ops.aten.add.Tensor and "alpha" in node.kwargs:
            with traced.graph.inserting_before(node):  # inductor multiplies integers by it as floats
                times = traced.graph.call_function(torch.ops.aten.mul.Tensor, (node.args[1], node.kwargs["alpha"]))
            number = _number(traced, node.args[0])
            node.args, node.kwargs = (node.args[0], times) if number is None else (times, number), {}
    traced.recompile()
    return traced


def _number(traced: torch.fx.GraphModule, node: torch.fx.Node) -> int | float | None:
    """The value of a constant that is one number, which inductor takes for a float whatever it is; None: anything else."""
    while node.target in (
        torch.ops.aten.lift_fresh_copy.default,
        torch.ops.aten.lift_fresh.default,
        torch.ops.aten.clone.default,
    ):
        (node,) = node.all_input_nodes
    if node.op != "get_attr":
        return None
    held = getattr(traced, str(node.target))
    return held.item() if isinstance(held, torch.Tensor) and held.ndim == 0 else None


def features_function(graph: FeatureGraph, example: RawBatch) -> Callable[..., Tensors]:
    """(constants, tensors of a batch) -> dense matrix, ids and whether they are there [F * B], labels."""
    names = list(example.columns)
    nullable = [name for name in names if example.columns[name].nulls_N is not None]

    def run(constants: Constants, *tensors: torch.Tensor) -> Tensors:
        values = dict(zip(names, tensors, strict=False))
        nulls = dict(zip(nullable, tensors[len(names) :], strict=False))
        raw = RawBatch(
            columns={name: Column(values_N=values[name], nulls_N=nulls.get(name)) for name in names},
            row_ids_B=tensors[-1],
            event_times_s_B=example.event_times_s_B,
            num_rows=example.num_rows,
            global_rows=example.global_rows,
        )
        context = Context(row_ids_B=raw.row_ids_B, constants=constants)
        found: dict[int, Value] = {}
        for node in graph.nodes:
            found[node.index] = evaluate(node, found, raw, context, graph)
        label = bind(raw, graph.label, graph.columns[graph.label])
        assert isinstance(label, Dense)
        dense_BD = dense_matrix(graph.dense, [found[feature.node] for feature in graph.dense], raw.row_ids_B)
        ids_FB, present_FB = zip(*(_ids(found[feature.node]) for feature in graph.sparse), strict=True)
        return dense_BD, torch.cat(ids_FB), torch.cat(present_FB), label.values_B.to(torch.float32)

    return run


def _ids(value: Value) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(value, Dense)
    absent_B = torch.zeros_like(value.values_B, dtype=torch.bool) if value.nulls_B is None else value.nulls_B
    return value.values_B.to(torch.int64), ~absent_B


def _tensors(raw: RawBatch) -> list[torch.Tensor]:
    nulls = [column.nulls_N for column in raw.columns.values() if column.nulls_N is not None]
    return [*(column.values_N for column in raw.columns.values()), *nulls, raw.row_ids_B]
