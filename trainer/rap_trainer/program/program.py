"""`Program`: a feature graph run on raw batches, each node once, freed after its last use.

It compiles nothing to machine code; the fused kernels of a graph are made elsewhere from the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rap_contract.graph import FeatureGraph, Node
from rap_contract.ops import Op

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.ops.nulls import collapse
from rap_trainer.ops.registry import apply
from rap_trainer.ops.value import Context, Dense, Jagged, Value
from rap_trainer.program.columns import bind
from rap_trainer.program.outputs import dense_matrix, sparse_tensor


class Program:
    """The features of a job. Stateless but for constants on devices; not thread-safe."""

    def __init__(self, graph: FeatureGraph) -> None:
        self.graph = graph
        self.inputs: tuple[str, ...] = tuple(dict.fromkeys((*graph.inputs, graph.label)))
        """Columns a batch must hold."""
        self.nodes_per_feature: Mapping[str, int] = {
            feature.name: sum(node.op is not None for node in graph.chain(feature)) for feature in graph.features
        }
        """Ops a feature needs, shared ones counted for each."""
        self._constants: dict[tuple[int, str, torch.device], tuple[Op, torch.Tensor]] = {}
        self._last_use = self._last_uses()

    def run(self, raw: RawBatch) -> ModelBatch:
        """The model's input of a batch, on the batch's device. Raises BatchError, naming the column."""
        context = Context(row_ids_B=raw.row_ids_B, constants=self._constants)
        values = self._values(raw, context)
        graph = self.graph
        label = bind(raw, graph.label, graph.columns[graph.label])
        assert isinstance(label, Dense)
        return ModelBatch(
            dense_BD=dense_matrix(graph.dense, [values[f.node] for f in graph.dense], raw.row_ids_B),
            sparse=sparse_tensor(graph, [values[f.node] for f in graph.sparse], raw.row_ids_B),
            labels_B=label.values_B.to(torch.float32),
            global_rows=raw.global_rows,
            event_times_s_B=raw.event_times_s_B,
            counters=context.counters,
        )

    def _values(self, raw: RawBatch, context: Context) -> dict[int, Value]:
        """Values of the features' nodes; all others are dropped after their last use."""
        values: dict[int, Value] = {}
        for node in self.graph.nodes:
            values[node.index] = evaluate(node, values, raw, context, self.graph)
            for index in node.inputs:
                if self._last_use[index] == node.index:
                    values.pop(index, None)
        return values

    def _last_uses(self) -> list[int]:
        num = len(self.graph.nodes)
        last = list(range(num))
        for node in self.graph.nodes:
            for index in node.inputs:
                last[index] = node.index
        for feature in self.graph.features:
            last[feature.node] = num
        return last


def evaluate(node: Node, values: Mapping[int, Value], raw: RawBatch, context: Context, graph: FeatureGraph) -> Value:
    """One node's value from those of its inputs."""
    if node.column is not None:
        return bind(raw, node.column, graph.columns[node.column], node.weights)
    given = [values[index] for index in node.inputs]
    if node.op is not None:
        return apply(node.op, given[0], dict(zip(node.references, given[1:], strict=True)), context)
    assert node.collapse is not None
    assert all(isinstance(each, Jagged) for each in given)
    lists = [each for each in given if isinstance(each, Jagged)]
    return collapse(lists[0], node.collapse, lists[1] if len(lists) > 1 else None)
