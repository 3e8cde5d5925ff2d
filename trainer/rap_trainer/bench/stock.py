"""Stock TorchRec: the plain loop and TrainPipelineSparseDist, on inputs that are ready or preprocessed op by op.

What everyone has today; nothing of the captured runtime or the fused kernels is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.streamable import Pipelineable

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.bench.subject import Subject
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World


class StockStep:
    """Forward, backward and update of one batch, as a TorchRec user writes them."""

    def __init__(self, model: ShardedModel, world_size: int) -> None:
        self._model, self._world_size = model, world_size

    def train(self, batch: ModelBatch) -> torch.Tensor:
        """This rank's share of the loss, detached."""
        self._model.zero_grad()
        logits_B = self._model.forward(batch.dense_BD, batch.sparse)
        total = F.binary_cross_entropy_with_logits(logits_B, batch.labels_B, reduction="sum")
        (total * (self._world_size / batch.global_rows)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._model.update()
        return total.detach() / batch.global_rows


def rotate(step: Callable[[Any], torch.Tensor], inputs: tuple[Any, ...]) -> Callable[[], torch.Tensor]:
    """A step that takes the next input each time."""
    at = 0

    def one() -> torch.Tensor:
        nonlocal at
        at += 1
        return step(inputs[(at - 1) % len(inputs)])

    return one


def ideal(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """Inputs ready on the device."""
    return rotate(StockStep(model, world.size).train, subject.ready)


def sequential(model: ShardedModel, subject: Subject, world: World) -> Callable[[], torch.Tensor]:
    """The plan's ops one by one in PyTorch on the training stream, from raw columns in pinned memory."""
    step = StockStep(model, world.size)

    def one(raw: RawBatch) -> torch.Tensor:
        moved = raw.map(lambda tensor: tensor.to(world.device, non_blocking=True))
        return step.train(subject.program.run(moved))

    return rotate(one, subject.host)


@dataclass
class PipelineBatch(Pipelineable):
    """A batch as TorchRec's pipelines move it."""

    dense_BD: torch.Tensor
    sparse: Any
    labels_B: torch.Tensor
    scale: float

    def to(self, device: torch.device, non_blocking: bool = False) -> PipelineBatch:
        return PipelineBatch(
            self.dense_BD.to(device, non_blocking=non_blocking),
            self.sparse.to(device, non_blocking=non_blocking),
            self.labels_B.to(device, non_blocking=non_blocking),
            self.scale,
        )

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        for each in (self.dense_BD, self.sparse, self.labels_B):
            each.record_stream(stream)

    def pin_memory(self) -> PipelineBatch:
        return self


class PipelineModel(nn.Module):
    """Gives (loss, logits) of a batch, as TorchRec's pipelines want it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: PipelineBatch) -> tuple[torch.Tensor, torch.Tensor]:
        logits_B = self.module(batch.dense_BD, batch.sparse)
        loss = F.binary_cross_entropy_with_logits(logits_B, batch.labels_B, reduction="sum") * batch.scale
        return loss, logits_B.detach()


def as_pipeline_batch(batch: ModelBatch, world_size: int) -> PipelineBatch:
    """The same rows in a pipeline's form."""
    return PipelineBatch(batch.dense_BD, batch.sparse, batch.labels_B, world_size / batch.global_rows)


class _Update(torch.optim.Optimizer):
    """The model's own updates behind the interface a pipeline calls."""

    def __init__(self, model: ShardedModel) -> None:
        self._model = model
        super().__init__([torch.zeros(1, requires_grad=True)], {})

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._model.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closures here
        self._model.update()


def pipelined_ideal(model: ShardedModel, subject: Subject, world: World) -> Callable[[], object]:
    """TrainPipelineSparseDist on inputs that are ready on the device."""
    wrapped = PipelineModel(model.module)
    pipeline = TrainPipelineSparseDist(wrapped, _Update(model), world.device, execute_all_batches=True)
    batches = [as_pipeline_batch(batch, world.size) for batch in subject.ready]

    def endless() -> Iterator[PipelineBatch]:
        while True:
            yield from batches

    feed = endless()
    return lambda: pipeline.progress(feed)
