"""Training on GPUs with the eager and the captured runtime: equal to a CPU, resumed across devices and runtimes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rap_contract.pod import ExitCode
from rap_trainer.display import Display
from rap_trainer.train import train
from train.recorder import Recorder
from train.saved_state import assert_equal, newest, steps
from train.small_jobs import small_job, write_events, write_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings(r"ignore:[\s\S]*is marked as[\s\S]*EXPERIMENTAL:UserWarning"),  # FBGEMM of Adam and LAMB
]

TOLERANCE = 2e-4
"""Absolute, after 21 steps in fp32: sums in another order; learning rates of 0.02 and 0.1."""
GPU = {"trainer__gpusPerNode": 1, "trainer__precision": "fp32"}
EAGER = {**GPU, "trainer__runtime": "eager"}

ONE_ID = [
    {"columns": ["int_{0..2}"], "ops": [{"fillNull": {"value": 0}}]},
    {
        "columns": ["cat_{0..2}"],
        "ops": [{"fillNull": {"value": 0}}, {"positiveModulus": {"modulus": 40}}, {"firstx": {"count": 1}}],
        "table": {"rows": 40, "dim": 16},
    },
]
"""Features the captured runtime has a form of."""
CAPTURABLE = {"features": ONE_ID, "model": {"dlrm": {"bottom": [16, 16], "top": [16, 1]}}}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    write_events(folder, rows=331)
    return folder / "events"


def run(folder: Path, events: Path, **changes: Any) -> Recorder:
    recorder = Recorder()
    ending = train(small_job(folder, source={"files": {"path": str(events)}}, **changes), display=Display([recorder]))
    assert ending.code == ExitCode.DONE, ending.reason
    return recorder


@pytest.mark.parametrize("embedding", ["rowwiseAdagrad", "adam", "partialRowwiseAdam", "lamb", "sgd", "adagrad"])
def test_a_gpu_trains_the_model_a_cpu_trains_with_every_table_optimizer(
    tmp_path: Path, events: Path, embedding: str
) -> None:
    changes = {"optimizer": {"dense": {"sgd": {"lr": 0.05}}, "embedding": {embedding: {"lr": 0.01}}}}
    run(tmp_path / "cpu", events, **changes)
    run(tmp_path / "gpu", events, **EAGER, **changes)
    assert_equal(newest(tmp_path / "cpu"), newest(tmp_path / "gpu"), tolerance=TOLERANCE)


@pytest.mark.parametrize("embedding", ["rowwiseAdagrad", "adam"])
def test_a_job_moves_from_gpu_to_cpu_and_back(tmp_path: Path, events: Path, embedding: str) -> None:
    changes = {"optimizer": {"dense": {"adam": {"lr": 0.01}}, "embedding": {embedding: {"lr": 0.01}}}}
    run(tmp_path / "whole", events, **EAGER, **changes)
    run(tmp_path / "moved", events, trainer__maxSteps=6, **EAGER, **changes)
    run(tmp_path / "moved", events, trainer__maxSteps=12, **changes)
    recorder = run(tmp_path / "moved", events, **EAGER, **changes)
    assert recorder.runs[0].resumed_step == 12
    assert steps(tmp_path / "moved") == [21, 12, 6]
    assert_equal(newest(tmp_path / "whole"), newest(tmp_path / "moved"), tolerance=TOLERANCE)


def test_the_loop_runs_captured_where_it_can_and_resumes_eager_checkpoints(tmp_path: Path, events: Path) -> None:
    run(tmp_path / "whole", events, **EAGER, **CAPTURABLE)
    run(tmp_path / "both", events, trainer__maxSteps=6, **EAGER, **CAPTURABLE)
    recorder = run(tmp_path / "both", events, trainer__maxSteps=12, **GPU, **CAPTURABLE)
    assert recorder.runs[0].runtime == "captured"
    run(tmp_path / "both", events, **EAGER, **CAPTURABLE)
    assert_equal(newest(tmp_path / "whole"), newest(tmp_path / "both"), tolerance=TOLERANCE)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_of_half_a_batch_equal_one(tmp_path: Path, events: Path) -> None:
    run(tmp_path / "one", events, **EAGER)
    two = tmp_path / "two"
    two.mkdir()
    halved = {**EAGER, "trainer__gpusPerNode": 2, "trainer__batchSizePerGpu": 8}
    job = write_job(two, source={"files": {"path": str(events)}}, **halved)
    roots = [str(Path(__file__).resolve().parents[2] / name) for name in ("operator", "trainer", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "rap_trainer.cli", "run", str(job), "--plain"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert_equal(newest(tmp_path / "one"), newest(two), tolerance=TOLERANCE)
