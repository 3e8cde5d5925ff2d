"""Fixtures that all tests can ask for."""

import os
from pathlib import Path

# Without a GPU, Triton's kernels run in its interpreter; it is chosen before anything imports triton.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

# Test runners share the cores already: with more OpenMP threads, barriers on a busy machine cost 25 times the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["servers.plugin", "node_agent.plugin"]
