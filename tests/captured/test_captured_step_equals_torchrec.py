"""The step's recipe against TorchRec's own eager step, on a CPU: losses, tables and dense parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from captured.comparison import CPU, SIZES, compare, compare_on_rank
from captured.torchrec_dlrm import build
from rap_trainer.captured import step
from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.dense_optimizer import DenseRule, FlatOptimizer
from rap_trainer.captured.dense_part import DensePart
from rap_trainer.captured.exchange import LocalExchange
from rap_trainer.captured.lanes import Lanes
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.step import NoPreprocessing, TrainStep
from torch.multiprocessing.spawn import spawn


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("window", list(Window), ids=str)
@pytest.mark.usefixtures("world_of_one")
def test_one_rank_trains_as_torchrec_whatever_the_window(window: Window) -> None:
    compare(0, 1, Schedule.uniform(2, window))


@pytest.mark.usefixtures("world_of_one")
def test_rows_are_worked_on_in_parts_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LEAST_BYTES", 1)
    monkeypatch.setattr(step, "PART_ROWS", 3)
    monkeypatch.setattr(LocalExchange, "parts", 2)
    compare(0, 1, Schedule.uniform(2, Window.MLP_FWD))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.usefixtures("world_of_one")
def test_rows_looked_up_where_they_are_read_train_the_same(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(step, "LEAST_BYTES", 1)
    monkeypatch.setattr(step, "PART_ROWS", 3)
    monkeypatch.setattr(LocalExchange, "parts", parts)
    compare(0, 1, Schedule.uniform(2, Window.EMB_BWD), direct=True)


@pytest.mark.usefixtures("world_of_one")
def test_a_model_of_any_kind_trains_as_torchrec_split_at_its_embeddings() -> None:
    compare(0, 1, Schedule.uniform(2, Window.MLP_BWD), traced=True)


def test_two_ranks_train_as_torchrec_with_early_and_late_preprocessing(tmp_path: Path) -> None:
    windows = (Window.OUTPUT_DIST.value, Window.EMB_BWD.value)
    spawn(compare_on_rank, args=(2, str(tmp_path / "store"), windows), nprocs=2)  # type: ignore[no-untyped-call]  # torch leaves it untyped


@pytest.mark.usefixtures("world_of_one")
def test_a_schedule_must_place_every_kernel() -> None:
    model = build(SIZES, CPU)
    blocks = Blocks(order=tuple(range(5)), counts=(5,), rank=0, batch_size=8, dim=8)
    exchange = LocalExchange(blocks, CPU)
    dense = DensePart(model.mlps, blocks, allocate=exchange.allocate_grads)
    optimizer = FlatOptimizer(DenseRule(kind="sgd", lr=0.1), dense.flat)
    with pytest.raises(ValueError, match="0 kernels, the schedule places 1"):
        TrainStep(
            model.sharded._lookups[0],
            dense,
            optimizer,
            exchange,
            lanes=Lanes(CPU),
            preprocessor=NoPreprocessing(),
            schedule=Schedule.uniform(1, Window.INLINE),
        )
