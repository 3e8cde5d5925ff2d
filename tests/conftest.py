"""Fixtures that all tests can ask for."""

import os
from pathlib import Path

import pytest

# Without a GPU, Triton's kernels run in its interpreter; it is chosen before anything imports triton.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

# Test runners share the cores already: with more OpenMP threads, barriers on a busy machine cost 25 times the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["servers.plugin", "node_agent.plugin"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU say so where there is none, however pytest was called."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and none is visible; see `make test-gpu`"))


def _has_gpu() -> bool:
    if not Path("/dev/nvidiactl").exists():
        return False
    import torch  # only where a driver is: it takes seconds

    return torch.cuda.is_available()
