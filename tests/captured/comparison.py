"""Trains one model by TorchRec's eager step and by the captured step's recipe, and compares everything."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from captured.torchrec_dlrm import Model, Sizes, build
from rap_trainer.captured.assemble import table_modules
from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.dense_optimizer import DenseRule, FlatOptimizer
from rap_trainer.captured.dense_part import DensePart
from rap_trainer.captured.exchange import Exchange, LocalExchange
from rap_trainer.captured.input_dist import ownership_of
from rap_trainer.captured.lanes import Lanes
from rap_trainer.captured.nccl_exchange import NcclExchange
from rap_trainer.captured.row_lookup import row_lookup
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.slots import Slot, make_slots
from rap_trainer.captured.step import TrainStep
from rap_trainer.captured.traced_part import TracedPart, without_tables

CPU = torch.device("cpu")
SIZES = Sizes()
STEPS = 6


class Feed:
    """Batches of all ranks, and a preprocessor that fills a slot with this rank's share of the next."""

    num_kernels = 2

    def __init__(self, blocks: Blocks, num_dense: int) -> None:
        self.blocks, self.num_dense, self.next = blocks, num_dense, 0
        generator = torch.Generator().manual_seed(5)
        B, W = blocks.batch_size, blocks.world_size
        self.dense = torch.rand(STEPS + 1, W * B, num_dense, generator=generator)
        self.ids = torch.randint(0, SIZES.rows, (STEPS + 1, len(blocks.order), W * B), generator=generator)
        self.labels = (torch.rand(STEPS + 1, W * B, generator=generator) < 0.4).float()
        self.rows = [W * B] * STEPS + [W * B - 3]

    def share(self) -> slice:
        B = self.blocks.batch_size
        return slice(self.blocks.rank * B, (self.blocks.rank + 1) * B)

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        """Kernel 0 writes the dense part and the labels, kernel 1 the ids."""
        i, mine = min(self.next, STEPS), self.share()
        if kernel == 0:
            slot.dense[:, : self.num_dense] = self.dense[i, mine]
            slot.targets.labels_B.copy_(self.labels[i, mine])
            slot.targets.scale.fill_(1 / self.rows[i])
            slot.targets.num_rows.fill_(min(self.blocks.batch_size, self.rows[i] - mine.start))
            return
        slot.ids_FB.copy_(self.ids[i, list(self.blocks.order), mine])
        self.next += 1


def reference(model: Model, feed: Feed) -> list[float]:
    """TorchRec's eager step on this rank's share; losses summed over the ranks."""
    optimizer = torch.optim.Adagrad(model.dense_parameters(), lr=0.05)
    world, losses = dist.get_world_size(), []
    for i in range(STEPS + 1):
        mine = feed.share()
        logits = model.dmp(feed.dense[i, mine], model.kjt(feed.ids[i, :, mine])).squeeze(1)
        each = F.binary_cross_entropy_with_logits(logits, feed.labels[i, mine], reduction="none")
        rows = min(feed.blocks.batch_size, feed.rows[i] - mine.start)
        loss = each[:rows].sum() * world / feed.rows[i]
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.dense_parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        total = loss.detach() / world
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


def traced_part(model: Model, exchange: Exchange, blocks: Blocks) -> TracedPart:
    owned = ownership_of(model.sharded).owned
    parameters = [parameter for layer in (*model.mlps.bottom, *model.mlps.top) for parameter in layer.parameters()]
    names = [name for each in owned for name in each]
    apart = without_tables(_Logits(model.dmp.module), parameters, names, SIZES.dim)
    return TracedPart(apart, blocks, allocate=exchange.allocate_grads, num_dense=SIZES.num_dense)


class _Logits(torch.nn.Module):
    """TorchRec's DLRM gives a column."""

    def __init__(self, dlrm: torch.nn.Module) -> None:
        super().__init__()
        self.dlrm = dlrm

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.dlrm(dense, pooled)
        return logits.squeeze(1)


def captured(
    model: Model, exchange: Exchange, blocks: Blocks, feed: Feed, schedule: Schedule, *, traced: bool, direct: bool
) -> list[float]:
    dense = (
        traced_part(model, exchange, blocks)
        if traced
        else DensePart(model.mlps, blocks, allocate=exchange.allocate_grads)
    )
    optimizer = FlatOptimizer(DenseRule(kind="adagrad", lr=0.05, eps=1e-10), dense.flat)
    slots = make_slots(blocks, ownership_of(model.sharded), exchange, dense_width=dense.dense_width)
    rows = row_lookup(table_modules(model.sharded), blocks, exchange, CPU) if direct else None
    assert (rows is not None) == direct
    step = TrainStep(
        model.sharded._lookups[0],
        dense,
        optimizer,
        exchange,
        lanes=Lanes(CPU),
        preprocessor=feed,
        schedule=schedule,
        rows=rows,
    )
    step.prepare(slots[0])
    losses = []
    for i in range(STEPS + 1):
        current, following = slots[i % 2], slots[1 - i % 2]
        step.enqueue(current, following)
        total = current.outcome.losses_P.sum()
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


def compare(rank: int, world: int, schedule: Schedule, *, traced: bool = False, direct: bool = False) -> None:
    owners = [0, 0, 0, 0, 0] if world == 1 else [1, 0, 1, 1, 0]
    reference_model, mine = build(SIZES, CPU, owners=owners), build(SIZES, CPU, owners=owners)
    ownership = ownership_of(mine.sharded)
    blocks = ownership.blocks(mine.names, rank=rank, batch_size=SIZES.batch_size, dim=SIZES.dim)
    exchange = LocalExchange(blocks, CPU) if world == 1 else NcclExchange(blocks, CPU, dist.group.WORLD)
    expected = reference(reference_model, Feed(blocks, SIZES.num_dense))
    got = captured(mine, exchange, blocks, Feed(blocks, SIZES.num_dense), schedule, traced=traced, direct=direct)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert abs(expected[0] - expected[-2]) > 1e-3
    for name, table in mine.tables().items():
        torch.testing.assert_close(table, reference_model.tables()[name], rtol=1e-4, atol=1e-6)
    for a, b in zip(mine.dense_parameters(), reference_model.dense_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def compare_on_rank(rank: int, world: int, store: str, windows: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    for window in windows:
        for traced in (False, True):
            compare(rank, world, Schedule.uniform(2, Window(window)), traced=traced)
    dist.destroy_process_group()
