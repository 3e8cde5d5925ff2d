"""What Triton's interpreter forgives, a compiler does not: types of a variable in two branches, names, tuples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_every_fused_kernel_compiles_for_an_sm_90(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, str(HERE / "compiled_kernels.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert len(run.stdout.splitlines()) == 15
