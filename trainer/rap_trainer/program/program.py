"""`Program`: a feature graph run on raw batches, each node once, freed after its last use.

Where the host may look at sizes (CPU), equal chains run as one; else node by node. Both give the same. It
compiles nothing to machine code; the fused kernels of a graph are made elsewhere from the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, Node

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.ops import segments
from rap_trainer.ops.value import Constants, Context, Dense, Value
from rap_trainer.program.columns import bind
from rap_trainer.program.execution import evaluate, run_lane
from rap_trainer.program.lanes import lanes_of
from rap_trainer.program.outputs import dense_matrix, sparse_tensor
from rap_trainer.program.side_by_side import Piece


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
        self._constants: Constants = {}
        self._readers = graph.readers
        self._lanes = lanes_of(graph)

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

    def _values(self, raw: RawBatch, context: Context) -> dict[int, Value | Piece]:
        """Values of the features' nodes; all others are dropped after their last use."""
        graph = self.graph
        unread = dict(self._readers)
        if not segments.host_may_look(raw.row_ids_B):
            one_by_one: dict[int, Value] = {}
            for node in graph.nodes:
                one_by_one[node.index] = evaluate(node, one_by_one, raw, context, graph)
                _drop_read(one_by_one, unread, node)
            return {**one_by_one}
        values: dict[int, Value | Piece] = {}
        for node in graph.nodes:
            if node.column is not None:
                values[node.index] = evaluate(node, {}, raw, context, graph)
        for lane in self._lanes:
            values.update(run_lane(lane, values, context))
            for strand in lane.strands:
                _drop_read(values, unread, strand[0])
        return values


def _drop_read(values: MutableMapping[int, Any], unread: dict[int, int], node: Node) -> None:
    """Forgets the inputs of a node that has run, unless another one or a feature still reads them."""
    for index in node.inputs:
        unread[index] -= 1
        if unread[index] == 0:
            del values[index]
