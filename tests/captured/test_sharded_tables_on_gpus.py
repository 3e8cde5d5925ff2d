"""Tables split by columns and tables of which every rank has a copy in the captured runtime, on one GPU and on two, against the eager one."""

from __future__ import annotations

import pytest
import torch
from captured.sharded_runtime import ROWS, batches, both, compare, eager, job, losses, on_rank
from captured.sharded_training import build
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model import shard
from rap_trainer.step.choice import choose_runtime
from rap_trainer.world import World
from servers.processes import free_port
from torch.multiprocessing.spawn import spawn
from torchrec.distributed.types import ShardingType

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("kind", ["single", "lists", "weighted"])
def test_tables_of_every_sharding_train_as_in_the_eager_runtime(world: World, kind: str) -> None:
    compare(world, kind)


@pytest.mark.parametrize("embedding", ["sgd", "adagrad", "rowwiseAdagrad"])
def test_a_hundred_losses_equal_the_eager_ones_with_every_table_optimizer_that_is_captured(
    world: World, embedding: str
) -> None:
    made = job("single", embedding=embedding)
    got, expected, *_ = both(world, made, batches(made[0], world) * 20)
    torch.testing.assert_close(got[:10], expected[:10], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-4)  # sums in other orders grow step by step


def test_a_model_of_a_factory_takes_them_too(world: World) -> None:
    compare(world, "single", factory=True)


@pytest.mark.parametrize("kind", ["single", "lists"])
def test_their_state_goes_from_runtime_to_runtime_both_ways(world: World, kind: str) -> None:
    document, spec, graph = job(kind, "adam")
    raws = batches(document, world, 3)
    expected = losses(eager(build(spec, graph, world), graph, world), raws * 3)
    model = build(spec, graph, world)
    found = losses(eager(model, graph, world), raws)
    middle = CapturedRuntime(model, graph, world, batch_size=ROWS, precision="fp32")
    found += losses(middle, raws)
    middle.synchronise_state()
    middle.close()
    found += losses(eager(model, graph, world), raws)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_rows_split_over_ranks_run_in_the_eager_runtime_and_the_log_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(shard.KINDS, "columnWise", ShardingType.ROW_WISE)
    document, spec, graph = job("single")
    model = build(spec, graph, world)
    with caplog.at_level("INFO"):
        runtime, name = choose_runtime(spec, graph, model, Evaluator(EvaluationSpec(), world.device), world)
    assert name == "eager"
    assert "eager runtime: sharding column_wise, data_parallel, row_wise has no captured form" in caplog.text
    assert all(loss > 0 for loss in losses(runtime, batches(document, world, 2)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("exchange", ["copy-engine", "nccl"])
def test_two_gpus_train_them_as_in_the_eager_runtime(exchange: str) -> None:
    spawn(on_rank, args=(free_port(), exchange), nprocs=2)  # type: ignore[no-untyped-call]  # torch leaves it untyped
