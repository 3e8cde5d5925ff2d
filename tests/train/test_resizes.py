"""`rap run` through 2, 4, 8 and 4 ranks by its checkpoints: the model of a run that was never resized."""

from __future__ import annotations

from pathlib import Path

from rap_contract.pod import ExitCode
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.train import train
from train.forge import Forge
from train.saved_state import assert_equal, newest, steps
from train.small_jobs import small_job, write_events, write_job

TOLERANCE = 2e-6
"""Absolute, after 21 steps, as between one rank and two."""
BATCH_SIZE = 16
STAGES = ((2, 5), (4, 10), (8, 15), (4, None))
"""Ranks, and the step at which they end."""


def test_two_four_eight_and_four_ranks_leave_the_model_of_one(tmp_path: Path, forge: Forge) -> None:
    write_events(tmp_path, rows=321)
    source = {"files": {"path": str(tmp_path / "events")}}
    whole, resized = tmp_path / "whole", tmp_path / "resized"
    train(small_job(whole, source=source, trainer__batchSizePerGpu=BATCH_SIZE))
    resized.mkdir()
    for num_ranks, last_step in STAGES:
        changes = {} if last_step is None else {"trainer__maxSteps": last_step}
        path = write_job(resized, source=source, trainer__batchSizePerGpu=BATCH_SIZE // num_ranks, **changes)
        run = forge.start(path, num_ranks=num_ranks)
        assert run.wait() == ExitCode.DONE, run.output
        assert read_manifest(newest(resized)).world_size == num_ranks
    assert steps(resized)[:3] == [21, 15, 10]
    assert_equal(newest(whole), newest(resized), tolerance=TOLERANCE)
