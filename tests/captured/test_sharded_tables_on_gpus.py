"""Tables split by columns and tables of which every rank has a copy in the captured runtime, on one GPU and on two, against the eager one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from captured.sharded_runtime import ROWS, batches, build, compare, eager, job, losses, on_rank
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.world import World, join_world
from torch.multiprocessing.spawn import spawn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield join_world({}, use_gpu=True)
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["single", "lists", "weighted"])
def test_tables_of_every_sharding_train_as_in_the_eager_runtime(world: World, kind: str) -> None:
    compare(world, kind)


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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("exchange", ["copy-engine", "nccl"])
def test_two_gpus_train_them_as_in_the_eager_runtime(exchange: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(on_rank, args=(port, exchange), nprocs=2)  # type: ignore[no-untyped-call]  # torch leaves it untyped
