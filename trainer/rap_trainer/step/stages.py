"""The stages of a training step as data: a name, a function, a stream.

    preprocess (side stream)  ->  forward and score  ->  backward  ->  update

The loss is the mean over the rows of all ranks, however unequal their shares: each rank takes the sum over its rows,
divided by all rows, times the number of ranks, because TorchRec divides the tables' gradients by that number and
DistributedDataParallel averages the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional as F

from rap_trainer.batch import ModelBatch, Positions, RawBatch
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.owners.delivery import Delivery

Preprocess = Callable[[RawBatch], ModelBatch]


@dataclass(kw_only=True)
class StepState:
    """A step on its way through the stages; each stage fills in what the next needs."""

    raw: RawBatch
    batch: ModelBatch | None = None
    loss: torch.Tensor | None = None
    """This rank's part, to go backward from."""
    loss_sum: torch.Tensor | None = None
    """Sum of the losses of this rank's rows; detached."""
    ready: torch.cuda.Event | None = None
    """The side stream's work is done."""
    error: Exception | None = None
    """Why it could not be preprocessed beside the step before; it is not trained then."""
    positions: Positions | None = None
    """Of the source after these rows; known only when a ledger is kept."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of the step."""

    name: str
    """The part its time is counted to (`display.PARTS`)."""
    run: Callable[[StepState], None]
    stream: Literal["main", "side"] = "main"
    """On a GPU, side stages of the next step run beside the main stages of this one."""


def training_stages(
    model: ShardedModel,
    preprocess: Preprocess,
    evaluator: Evaluator,
    *,
    world_size: int,
    device: torch.device,
    precision: str = "fp32",
    delivery: Delivery | None = None,
) -> tuple[Stage, ...]:
    """The step of a job, in order. `precision` bf16 computes the model's forward pass in it, on a GPU.

    `delivery`: takes what this rank has preprocessed for others; needed by batches that hold such.
    """
    autocast = precision == "bf16" and device.type == "cuda"

    def _preprocess(state: StepState) -> None:
        raw = state.raw
        if device.type != "cpu":
            raw = raw.map(lambda tensor: tensor.to(device, non_blocking=True))
        state.batch = preprocess(raw)

    def _forward(state: StepState) -> None:
        batch = state.batch
        assert batch is not None
        model.zero_grad()
        if delivery is not None:
            delivery.next = batch.owned
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            logits_B = model.forward(batch.dense_BD, batch.sparse)
        logits_B = logits_B.float()
        evaluator.update(logits_B.detach(), batch.labels_B, global_rows=batch.global_rows)
        total = F.binary_cross_entropy_with_logits(logits_B, batch.labels_B, reduction="sum")
        state.loss = total * (world_size / batch.global_rows)
        state.loss_sum = total.detach()

    def _backward(state: StepState) -> None:
        assert state.loss is not None
        state.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _update(state: StepState) -> None:
        del state
        model.update()

    return (
        Stage(name="preprocess", run=_preprocess, stream="side"),
        Stage(name="forward", run=_forward),
        Stage(name="backward", run=_backward),
        Stage(name="update", run=_update),
    )
