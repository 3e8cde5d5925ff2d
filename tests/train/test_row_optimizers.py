"""The CPU's own table optimizers against FBGEMM's fused ones, where both exist; a GPU test compares the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from rap_contract.pod import ExitCode
from rap_trainer.model import shard
from rap_trainer.train import train
from train.saved_state import assert_equal, newest
from train.small_jobs import small_job, write_events


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwiseAdagrad"])
def test_the_cpu_optimizer_equals_the_fused_one(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_events(tmp_path, rows=160)
    changes = {
        "source": {"files": {"path": str(tmp_path / "events")}},
        "optimizer": {"dense": {"sgd": {"lr": 0.1}}, "embedding": {name: {"lr": 0.1}}},
    }
    assert train(small_job(tmp_path / "fused", **changes)).code == ExitCode.DONE
    monkeypatch.setattr(shard, "has_fused_kernel", lambda spec, device: False)
    assert train(small_job(tmp_path / "rows", **changes)).code == ExitCode.DONE
    assert_equal(newest(tmp_path / "fused"), newest(tmp_path / "rows"), tolerance=1e-5)
