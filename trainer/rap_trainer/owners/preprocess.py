"""A mapping with table owners as one function from raw rows to a model's batch. Collective: every rank calls it for each step.

Features of own rows are made here as always; the others arrive at their owner as raw columns and are made there for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from rap_contract.graph import FeatureGraph
from torchrec import KeyedJaggedTensor

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.owners.columns import Wanted, gathered
from rap_trainer.profiling.subgraphs import subgraph
from rap_trainer.world import World

Preprocess = Callable[[RawBatch], ModelBatch]
Make = Callable[[FeatureGraph, int], Preprocess]
"""Preprocessing of a graph for batches of so many rows."""


class OwnerPreprocess:
    """Of one rank and mapping."""

    def __init__(
        self,
        graph: FeatureGraph,
        mapping: Mapping[str, int | None],
        world: World,
        group: dist.ProcessGroup,
        *,
        make: Make,
        rows: int,
    ) -> None:
        """`mapping`: the owner of each feature that is not made on its own rows; `rows`: of a rank's batch, at most."""
        self._order = [feature.name for feature in graph.sparse]
        self._weighted = graph.weighted
        self._rank, self._group = world.rank, group
        by_owner: dict[int, list[str]] = {}
        for feature in graph.features:
            owner = mapping.get(feature.name)
            if owner is not None:
                by_owner.setdefault(owner, []).append(feature.name)
        moved = {name for names in by_owner.values() for name in names}
        self._own = make(subgraph(graph, {feature.name for feature in graph.features} - moved), rows)
        parts = {owner: subgraph(graph, names) for owner, names in sorted(by_owner.items())}
        self._wanted = {owner: _wanted(part) for owner, part in parts.items()}
        mine = parts.get(world.rank)
        self._mine = None if mine is None else make(mine, rows * world.size)

    def __call__(self, raw: RawBatch) -> ModelBatch:
        """Collective. Raises BatchError."""
        arrived = gathered(raw, self._wanted, rank=self._rank, group=self._group)
        batch = self._own(raw)
        counters, owned = dict(batch.counters), None
        if self._mine is not None:
            assert arrived is not None
            made = self._mine(arrived)
            owned = made.sparse
            counters |= {name: counters[name] + n if name in counters else n for name, n in made.counters.items()}
        sparse = _with_empty_lists(batch.sparse, self._order, raw.num_rows, weighted=self._weighted)
        return replace(batch, sparse=sparse, owned=owned, counters=counters)


def _wanted(part: FeatureGraph) -> Wanted:
    names = dict.fromkeys((*part.inputs, part.label))
    return Wanted(columns=tuple((name, part.columns[name]) for name in names))


def _with_empty_lists(sparse: KeyedJaggedTensor, order: list[str], rows: int, *, weighted: bool) -> KeyedJaggedTensor:
    """The same ids, with an empty list in every row of the features that are made elsewhere."""
    mine = dict(zip(sparse.keys(), sparse.lengths().view(-1, rows) if rows else [], strict=False))
    none = torch.zeros(rows, dtype=torch.int32, device=sparse.values().device)
    weights = sparse.weights_or_none()
    if weighted and weights is None:
        weights = torch.ones(sparse.values().numel(), device=sparse.values().device)
    return KeyedJaggedTensor(
        keys=order,
        values=sparse.values(),
        weights=weights,
        lengths=torch.cat([mine.get(name, none) for name in order]) if order else none,
        stride=rows,
    )
