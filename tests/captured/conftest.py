"""The world of one GPU, for the tests that compare runtimes there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from rap_trainer.world import World, join_world


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield join_world({}, use_gpu=True)
    dist.destroy_process_group()
