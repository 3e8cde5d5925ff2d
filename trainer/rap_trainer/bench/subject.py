"""What every baseline shares: a plan's job, its sharded model, and the same raw batches in every case.

Tables keep the plan's rows up to a cap; they are filled on the device, not by the job's slow exact initialiser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.model import shard
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import ShardedModel, shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program
from rap_trainer.world import World

NUM_BATCHES = 2
"""Batches a benchmark rotates through: as many as the captured step has slots, so that with inputs ready it reads the same rows of
tables as every other case."""


class Refused(ValueError):
    """A baseline has no form for a plan; the message says why. Raised on all ranks before anything is enqueued."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A plan to train, and its data on this rank."""

    plan: int
    batch_size: int
    max_rows: int | None
    """Cap of every table."""
    document: dict[str, Any]
    job: RAPJob
    graph: FeatureGraph
    program: Program
    host: tuple[RawBatch, ...]
    """Raw batches in pinned memory."""
    ready: tuple[ModelBatch, ...]
    """The same, preprocessed by the eager program: what the ideal trains on."""


def make_subject(plan: int, batch_size: int, world: World, *, max_rows: int | None) -> Subject:
    """The plan and its batches, different on each rank."""
    document = plan_job(plan, max_rows=max_rows, batch_size=batch_size)
    job = RAPJob.model_validate(document)
    graph, problems = compile_features(job.spec)
    assert graph is not None, problems
    program = Program(graph)
    rows = batch_size * world.size
    host: list[RawBatch] = []
    ready: list[ModelBatch] = []
    for number in range(NUM_BATCHES):
        seed = 100 * (number + 1) + world.rank
        on_device = replace(synthetic_batch(document, batch_size, seed=seed, device=world.device), global_rows=rows)
        ready.append(program.run(on_device))
        host.append(on_device.map(lambda tensor: tensor.cpu().pin_memory()))
    return Subject(
        plan=plan,
        batch_size=batch_size,
        max_rows=max_rows,
        document=document,
        job=job,
        graph=graph,
        program=program,
        host=tuple(host),
        ready=tuple(ready),
    )


def make_model(subject: Subject, world: World) -> ShardedModel:
    """The plan's model, sharded; equal at each call. Collective."""
    original = shard.initialise_tables
    shard.initialise_tables = _fill_on_device
    try:
        model = build_model(
            subject.job.spec, embedding_bag_collection(subject.graph), num_dense=subject.graph.dense_width
        )
        return shard_model(model, subject.job.spec, world)
    finally:
        shard.initialise_tables = original


class HostedModel:
    """One model for several cases in turn: made once, put back to its first state for each."""

    def __init__(self, subject: Subject, world: World) -> None:
        self._model = make_model(subject, world)
        self._seed = subject.job.spec.trainer.seed
        assert self._model.dense is not None
        self._dense = [(tensor, tensor.detach().clone()) for tensor in self._model.dense.params.values()]

    def reset(self) -> ShardedModel:
        """The model as it was first. Plans train densely with SGD, which keeps no state."""
        self._model.zero_grad()
        with torch.no_grad():
            for tensor, first in self._dense:
                tensor.copy_(first)
            for states in _table_states(self._model.module):
                for state in states:
                    state.zero_()
        _fill_on_device(self._model.module, seed=self._seed)
        return self._model


def _fill_on_device(module: torch.nn.Module, *, seed: int) -> None:
    for name, weight in shard.table_weights(module):
        shards = [s.tensor for s in weight.local_shards()] if hasattr(weight, "local_shards") else [weight]
        for tensor in shards:
            generator = torch.Generator(tensor.device).manual_seed(seed + sum(name.encode()))
            with torch.no_grad():
                tensor.uniform_(-0.01, 0.01, generator=generator)


def _table_states(module: torch.nn.Module) -> Iterator[Sequence[torch.Tensor]]:
    """What FBGEMM's fused optimizers keep, table by table; lookups are no submodules of what holds them."""
    for sharded in module.modules():
        if isinstance(sharded, ShardedEmbeddingBagCollection):
            for lookup in sharded._lookups:
                for each in lookup._emb_modules:
                    yield from each.emb_module.split_optimizer_states()
