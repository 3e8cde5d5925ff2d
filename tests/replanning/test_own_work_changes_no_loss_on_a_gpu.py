"""Windows measured with the job's own work between two steps leave the model as it was, and say something of each window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from planner.test_plans_change_no_loss_on_a_gpu import job, losses, runtime
from rap_planner.cost import Slot
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.profiling.found import NOTHING
from rap_trainer.world import World, join_world

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({}, use_gpu=True)
    dist.destroy_process_group()


def test_windows_measured_with_own_work_between_two_steps_change_no_loss(world: World) -> None:
    from rap_trainer.profiling.captured_windows import TRIED
    from rap_trainer.profiling.own_work import own_work

    asked = job("captured")
    expected = losses(runtime(asked, world), asked)
    trained = runtime(asked, world)
    assert isinstance(trained, CapturedRuntime)
    found: list[dict[Slot, float]] = []
    assert losses(trained, asked, between=lambda: found.append(own_work(trained, world))) == expected
    (seconds,) = found
    assert set(seconds) == {NOTHING, *TRIED}
    assert all(0 < each < 1 for each in seconds.values())
