"""What every baseline shares: a plan's job, its sharded model, and the same raw batches on every rank.

Tables keep the plan's rows up to a cap; they are filled on the device, not by the job's slow exact initialiser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.model import shard
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import ShardedModel, shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program
from rap_trainer.world import World

NUM_BATCHES = 4
"""Batches a benchmark rotates through: more than the L2 holds of any plan's inputs."""


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
    device: tuple[RawBatch, ...]
    """The same on the device."""
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
    host = tuple(
        replace(raw_batch(document, batch_size, world.rank, i).map(lambda t: t.pin_memory()), global_rows=rows)
        for i in range(NUM_BATCHES)
    )
    device = tuple(batch.map(lambda t: t.to(world.device)) for batch in host)
    ready = tuple(program.run(batch) for batch in device)
    return Subject(
        plan=plan,
        batch_size=batch_size,
        max_rows=max_rows,
        document=document,
        job=job,
        graph=graph,
        program=program,
        host=host,
        device=device,
        ready=ready,
    )


def raw_batch(document: dict[str, Any], batch_size: int, rank: int, number: int) -> RawBatch:
    """One of a rank's raw batches, the same in every process."""
    return synthetic_batch(document, batch_size, seed=100 * (number + 1) + rank)


def make_model(subject: Subject, world: World) -> ShardedModel:
    """The plan's model, sharded; equal at each call."""
    original = shard.initialise_tables
    shard.initialise_tables = _fill_on_device
    try:
        model = build_model(
            subject.job.spec, embedding_bag_collection(subject.graph), num_dense=subject.graph.dense_width
        )
        return shard_model(model, subject.job.spec, world)
    finally:
        shard.initialise_tables = original


def _fill_on_device(module: torch.nn.Module, *, seed: int) -> None:
    for name, weight in shard.table_weights(module):
        shards = [s.tensor for s in weight.local_shards()] if hasattr(weight, "local_shards") else [weight]
        for tensor in shards:
            generator = torch.Generator(tensor.device).manual_seed(seed + sum(name.encode()))
            with torch.no_grad():
                tensor.uniform_(-0.01, 0.01, generator=generator)
