"""Baselines that call every kernel from the host: per-op preprocessing in a pipeline, fused preprocessing, CPU workers.

Shapes: B rows of this rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
import torch.multiprocessing as mp
from torchrec import KeyedJaggedTensor
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

WORKERS_AHEAD = 2
"""Batches each CPU worker has in hand."""


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


def staged_pipeline(
    model: ShardedModel, subject: Subject, world_size: int, device: torch.device
) -> Callable[[], torch.Tensor]:
    """TorchRec's StagedTrainPipeline: copy, then the plan's ops one by one, each stage on a stream of its own."""
    step = StockStep(model, world_size)

    def copy(raw: _Raw) -> _Raw:
        return _Raw(raw.batch.map(lambda tensor: tensor.to(device, non_blocking=True)))

    def preprocess(raw: _Raw) -> PipelineBatch:
        return as_pipeline_batch(subject.program.run(raw.batch), world_size)

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


def rap_eager(
    model: ShardedModel, subject: Subject, world_size: int, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Our eager runtime: fused kernels on a side stream, everything else as TorchRec runs it."""
    program = FusedProgram(subject.graph, device, limits=Limits(batch_size=subject.batch_size))
    torch.cuda.synchronize(device)  # its tables and scratch are filled on this stream, its kernels run on another
    stock = StockStep(model, world_size)

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


class CpuWorkers:
    """N processes that preprocess with PyTorch on one CPU thread each; the trainer copies what they send from pinned memory."""

    def __init__(self, subject: Subject, rank: int, *, workers: int) -> None:
        context = mp.get_context("spawn")
        self._asked, self._done = context.Queue(), context.Queue()
        arguments = (subject.plan, subject.batch_size, subject.max_rows, rank, self._asked, self._done)
        self._processes = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(workers)]
        for process in self._processes:
            process.start()
        self._sent = 0
        for _ in range(workers * WORKERS_AHEAD):
            self._ask()

    def _ask(self) -> None:
        self._asked.put(self._sent)
        self._sent += 1

    def next(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The next batch, whichever worker has it first, on its way to the device."""
        tensors = self._done.get(timeout=60)
        self._ask()
        return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}

    def close(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.terminate()


def _work(plan: int, batch_size: int, max_rows: int | None, rank: int, asked: Any, done: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    from rap_contract.graph import compile_features
    from rap_contract.job import RAPJob

    from rap_trainer.bench.subject import NUM_BATCHES, raw_batch
    from rap_trainer.plans import plan_job
    from rap_trainer.program import Program

    document = plan_job(plan, max_rows=max_rows, batch_size=batch_size)
    graph, _ = compile_features(RAPJob.model_validate(document).spec)
    assert graph is not None
    program = Program(graph)
    raws = [raw_batch(document, batch_size, rank, i) for i in range(NUM_BATCHES)]
    while True:
        batch = program.run(raws[asked.get() % NUM_BATCHES])
        done.put(
            {
                "dense": batch.dense_BD,
                "ids": batch.sparse.values(),
                "lengths": batch.sparse.lengths(),
                "labels": batch.labels_B,
            }
        )


def cpu_fed(
    model: ShardedModel, subject: Subject, world_size: int, device: torch.device, workers: CpuWorkers
) -> Callable[[], torch.Tensor]:
    """The stock step fed by CPU workers."""
    step, keys = StockStep(model, world_size), list(subject.ready[0].sparse.keys())

    def one() -> torch.Tensor:
        tensors = workers.next(device)
        sparse = KeyedJaggedTensor(keys=keys, values=tensors["ids"], lengths=tensors["lengths"])
        return step.train(
            ModelBatch(
                dense_BD=tensors["dense"],
                sparse=sparse,
                labels_B=tensors["labels"],
                global_rows=subject.ready[0].global_rows,
                event_times_s_B=subject.ready[0].event_times_s_B,
            )
        )

    return one
