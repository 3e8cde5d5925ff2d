"""Trains one model on lists of ids by TorchRec's eager step and by the captured step's recipe, and compares everything."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from captured.torchrec_dlrm import Model, Sizes, build
from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.dense_optimizer import DenseRule, FlatOptimizer
from rap_trainer.captured.dense_part import DensePart
from rap_trainer.captured.exchange import LocalExchange
from rap_trainer.captured.input_dist import ownership_of
from rap_trainer.captured.jagged_inputs import JaggedInputs
from rap_trainer.captured.lanes import Lanes
from rap_trainer.captured.list_exchange import LocalLists, NcclLists
from rap_trainer.captured.lists import ListLayout
from rap_trainer.captured.nccl_exchange import NcclExchange
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.slots import Slot, make_slots
from rap_trainer.captured.step import TrainStep
from torchrec import KeyedJaggedTensor

CPU = torch.device("cpu")
SIZES = Sizes()
STEPS = 4


class Feed:
    """Batches of lists of all ranks, and a preprocessor that fills a slot with this rank's share of the next."""

    num_kernels = 1

    def __init__(self, blocks: Blocks, names: tuple[str, ...], layout: ListLayout | None) -> None:
        self.blocks, self.names, self.layout, self.next = blocks, names, layout, 0
        generator = torch.Generator().manual_seed(7)
        B, W, S = blocks.batch_size, blocks.world_size, len(names)
        self.dense = torch.rand(STEPS, W, B, SIZES.num_dense, generator=generator)
        self.labels = (torch.rand(STEPS, W, B, generator=generator) < 0.4).float()
        self.lengths = torch.randint(0, 5, (STEPS, W, S, B), dtype=torch.int32, generator=generator)
        self.ids = [
            [
                [
                    torch.randint(0, SIZES.rows, (int(self.lengths[i, w, f].sum()),), generator=generator)
                    for f in range(S)
                ]
                for w in range(W)
            ]
            for i in range(STEPS)
        ]

    def kjt(self, i: int) -> KeyedJaggedTensor:
        rank = self.blocks.rank
        return KeyedJaggedTensor(
            keys=list(self.names), values=torch.cat(self.ids[i][rank]), lengths=self.lengths[i, rank].reshape(-1)
        )

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        assert slot.lists is not None
        assert self.layout is not None
        i, rank, B = min(self.next, STEPS - 1), self.blocks.rank, self.blocks.batch_size
        slot.dense[:, : SIZES.num_dense] = self.dense[i, rank]
        slot.targets.labels_B.copy_(self.labels[i, rank])
        slot.targets.scale.fill_(1 / (B * self.blocks.world_size))
        slot.targets.num_rows.fill_(B)
        slot.lists.ids_N.fill_(10**6)  # whatever lies behind a block's ids is no id
        row = 0
        for at, names in zip(self.layout.starts, self.layout.features, strict=True):
            for name in names:
                f = self.names.index(name)
                ids = self.ids[i][rank][f]
                slot.lists.ids_N[at : at + ids.numel()] = ids
                slot.lists.lengths[row * B : (row + 1) * B] = self.lengths[i, rank, f]
                at, row = at + ids.numel(), row + 1
        self.next += 1


def eager(model: Model, feed: Feed) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.dense_parameters(), lr=0.1), []
    world, rank = feed.blocks.world_size, feed.blocks.rank
    for i in range(STEPS):
        logits = model.dmp(feed.dense[i, rank], feed.kjt(i)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, feed.labels[i, rank])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for parameter in model.dense_parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(world)
        optimizer.step()
        total = loss.detach() / world
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


def train_lists(rank: int, world: int, store: str, window: str, num_fitted: int) -> None:
    """`num_fitted`: ranks that have room for the ids of the largest batch and no more."""
    fitted = rank < num_fitted
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    owners = [0] * 5 if world == 1 else [1, 0, 1, 1, 0]
    reference, mine = build(SIZES, CPU, owners=owners), build(SIZES, CPU, owners=owners)
    ownership = ownership_of(mine.sharded)
    blocks = ownership.blocks(mine.names, rank=rank, batch_size=SIZES.batch_size, dim=SIZES.dim, spare_rows=2)
    layout = ListLayout(
        owned=ownership.owned,
        room=tuple(160 + 32 * w for w in range(world)),
        batch_size=SIZES.batch_size,
        weighted=False,
    )
    group = dist.group.WORLD
    assert group is not None
    exchange = LocalExchange(blocks, CPU) if world == 1 else NcclExchange(blocks, CPU, group)
    lists = LocalLists(layout, CPU) if world == 1 else NcclLists(layout, rank, CPU, group)
    dense = DensePart(mine.mlps, blocks, allocate=exchange.allocate_grads)
    owned = ownership.owned[rank]
    slots = [
        replace(
            slot,
            lists=lists.outgoing(slot.index),
            inputs=JaggedInputs(
                owned,
                lists.incoming(slot.index),
                world_size=world,
                batch_size=SIZES.batch_size,
                spare_rows=2,
                tail_rows=SIZES.rows,
            ),
        )
        for slot in make_slots(blocks, ownership, exchange, dense_width=dense.dense_width, optional=False)
    ]
    feed = Feed(blocks, mine.names, layout)
    if fitted:
        held = feed.lengths[:, :, [mine.names.index(name) for name in owned]].sum((1, 2, 3))
        slots = [replace(slot, inputs=cast(JaggedInputs, slot.inputs).fitted(int(held.max()))) for slot in slots]
    expected = eager(reference, Feed(blocks, mine.names, None))
    step = TrainStep(
        mine.sharded._lookups[0],
        dense,
        FlatOptimizer(DenseRule(kind="sgd", lr=0.1), dense.flat),
        exchange,
        lanes=Lanes(CPU),
        preprocessor=feed,
        schedule=Schedule.uniform(1, Window(window)),
        lists=lists,
    )
    step.prepare(slots[0])
    got = []
    for i in range(STEPS):
        if fitted:
            inputs = cast(JaggedInputs, slots[i % 2].inputs)
            assert inputs.num_filled() == int(held[i]) <= inputs.kjt.values().numel()
        step.enqueue(slots[i % 2], slots[1 - i % 2])
        total = slots[i % 2].outcome.losses_P.sum()
        dist.all_reduce(total)
        got.append(float(total))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for name, table in mine.tables().items():
        torch.testing.assert_close(table, reference.tables()[name], rtol=1e-4, atol=1e-6)
    dist.destroy_process_group()
