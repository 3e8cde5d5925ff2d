"""The compile baseline: a plan's ops, traced, under torch.compile with combo kernels and CUDA graphs, in pieces of a few features.

For plans whose lists hold one element a row and whose features are numbers: the lists are taken as numbers, as somebody
who compiles would write it (inductor of PyTorch 2.11 fails on the offsets of real lists), and batches have one shape.
What needs the number of ids on the host, leaving out rows without one, stays outside, as in the eager program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, FeatureSpec, compile_features
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
FEATURES_A_PIECE = 8  # inductor of PyTorch 2.11 does not end within minutes with all of plan 0 in one graph
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
    """A graph of numbers compiled for batches of the shape of one: dense features and labels, then sparse ones in pieces."""

    def __init__(self, graph: FeatureGraph, example: RawBatch, *, options: dict[str, Any] | None = None) -> None:
        self._graph = graph
        sparse = range(0, len(graph.sparse), FEATURES_A_PIECE)
        functions = [dense_function(graph, example)]
        functions += [ids_function(graph, example, graph.sparse[at : at + FEATURES_A_PIECE]) for at in sparse]
        self._compiled = [_compiled(function, _tensors(example), options) for function in functions]

    def run(self, raw: RawBatch) -> ModelBatch:
        """The model's input; waits for the device once, as the eager program does."""
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        tensors = _tensors(raw)
        (dense_BD, labels_B), *pieces = (compiled(*tensors) for compiled in self._compiled)
        ids_FB, present_FB = (torch.cat(parts) for parts in zip(*pieces, strict=True))
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


def _compiled(
    function: Callable[..., Tensors], tensors: Sequence[torch.Tensor], options: dict[str, Any] | None
) -> Callable[..., Tensors]:
    constants: Constants = {}
    function(constants, *tensors)  # constants of ops are made once, outside the traced graph
    traced = traced_graph(lambda *given: function(constants, *given), tensors)
    compiled: Callable[..., Tensors] = torch.compile(
        traced, dynamic=False, options=OPTIONS if options is None else options
    )
    return compiled


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


def dense_function(graph: FeatureGraph, example: RawBatch) -> Callable[..., Tensors]:
    """(constants, tensors of a batch) -> dense matrix, labels."""
    values = _values_function(graph, example, graph.dense)

    def run(constants: Constants, *tensors: torch.Tensor) -> Tensors:
        raw, found = values(constants, *tensors)
        label = bind(raw, graph.label, graph.columns[graph.label])
        assert isinstance(label, Dense)
        dense_BD = dense_matrix(graph.dense, [found[feature.node] for feature in graph.dense], raw.row_ids_B)
        return dense_BD, label.values_B.to(torch.float32)

    return run


def ids_function(graph: FeatureGraph, example: RawBatch, features: Sequence[FeatureSpec]) -> Callable[..., Tensors]:
    """(constants, tensors of a batch) -> ids of these features and whether they are there [F * B]."""
    values = _values_function(graph, example, features)

    def run(constants: Constants, *tensors: torch.Tensor) -> Tensors:
        _, found = values(constants, *tensors)
        ids_FB, present_FB = zip(*(_ids(found[feature.node]) for feature in features), strict=True)
        return torch.cat(ids_FB), torch.cat(present_FB)

    return run


def _values_function(
    graph: FeatureGraph, example: RawBatch, features: Sequence[FeatureSpec]
) -> Callable[..., tuple[RawBatch, dict[int, Value]]]:
    """(constants, tensors of a batch) -> the batch, and the values of all nodes the features need."""
    names = list(example.columns)
    nullable = [name for name in names if example.columns[name].nulls_N is not None]
    needed = {feature.node for feature in features}
    for node in reversed(graph.nodes):
        if node.index in needed:
            needed.update(node.inputs)

    def run(constants: Constants, *tensors: torch.Tensor) -> tuple[RawBatch, dict[int, Value]]:
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
            if node.index in needed:
                found[node.index] = evaluate(node, found, raw, context, graph)
        return raw, found

    return run


def _ids(value: Value) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(value, Dense)
    absent_B = torch.zeros_like(value.values_B, dtype=torch.bool) if value.nulls_B is None else value.nulls_B
    return value.values_B.to(torch.int64), ~absent_B


def _tensors(raw: RawBatch) -> list[torch.Tensor]:
    nulls = [column.nulls_N for column in raw.columns.values() if column.nulls_N is not None]
    return [*(column.values_N for column in raw.columns.values()), *nulls, raw.row_ids_B]
