"""Baselines that call every kernel from the host: per-op preprocessing in a pipeline, and our fused preprocessing.

Shapes: B rows of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torchrec.distributed.train_pipeline import StagedTrainPipeline
from torchrec.distributed.train_pipeline.pipeline_stage import PipelineStage
from torchrec.streamable import Pipelineable

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.bench.stock import PipelineBatch, StockStep, as_pipeline_batch
from rap_trainer.bench.subject import Subject
from rap_trainer.fusion.program import FusedProgram, Limits
from rap_trainer.model.shard import ShardedModel
from rap_trainer.step.runtime import EagerRuntime
from rap_trainer.step.stages import Stage, StepState
from rap_trainer.world import World


class _Raw(Pipelineable):
    """A raw batch as TorchRec's pipelines move it."""

    def __init__(self, batch: RawBatch) -> None:
        self.batch = batch

    def to(self, device: torch.device, non_blocking: bool = False) -> _Raw:
        return _Raw(self.batch.map(lambda tensor: tensor.to(device, non_blocking=non_blocking)))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        def record(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(stream)
            return tensor

        self.batch.map(record)

    def pin_memory(self) -> _Raw:
        return self


def staged_pipeline(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """TorchRec's StagedTrainPipeline: copy, then the plan's ops one by one, each stage on a stream of its own."""
    step, device = StockStep(model, world.size), world.device

    def copy(raw: _Raw) -> _Raw:
        return _Raw(raw.batch.map(lambda tensor: tensor.to(device, non_blocking=True)))

    def preprocess(raw: _Raw) -> PipelineBatch:
        return as_pipeline_batch(subject.program.run(raw.batch), world.size)

    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
    pipeline = StagedTrainPipeline(
        [PipelineStage("copy", copy, streams[0]), PipelineStage("ops", preprocess, streams[1])]
    )

    feed, rows = (_Raw(raw) for raw in cycle(subject.host)), subject.ready[0].global_rows

    def one() -> torch.Tensor:
        batch = pipeline.progress(feed)
        return step.train(
            ModelBatch(
                dense_BD=batch.dense_BD,
                sparse=batch.sparse,
                labels_B=batch.labels_B,
                global_rows=rows,
                event_times_s_B=subject.ready[0].event_times_s_B,
            )
        )

    return one


def rap_eager(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """Our eager runtime: fused kernels on a side stream, everything else as TorchRec runs it."""
    device = world.device
    program = FusedProgram(subject.graph, device, limits=Limits(batch_size=subject.batch_size))
    torch.cuda.synchronize(device)  # its tables and scratch are filled on this stream, its kernels run on another
    stock = StockStep(model, world.size)

    def preprocess(state: StepState) -> None:
        state.batch = program.run(state.raw.map(lambda tensor: tensor.to(device, non_blocking=True)))

    def train(state: StepState) -> None:
        assert state.batch is not None
        state.loss_sum = stock.train(state.batch)

    runtime = EagerRuntime(
        [Stage(name="preprocess", run=preprocess, stream="side"), Stage(name="forward", run=train)], device=device
    )
    taken = 0

    def take() -> StepState:
        nonlocal taken
        taken += 1
        return runtime.prepare(subject.host[(taken - 1) % len(subject.host)])

    pending = take()

    def one() -> torch.Tensor:
        nonlocal pending
        upcoming = take()
        state = runtime.train(pending)
        pending = upcoming
        runtime.timer.take()
        assert state.loss_sum is not None
        return state.loss_sum

    return one
