"""The plans' jobs on real Criteo rows, where the folder with them lies beside the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rap_contract.pod import ExitCode
from rap_contract.validation import check_job
from rap_trainer.display import Display, Progress
from rap_trainer.plans import plan_job
from rap_trainer.train import train
from train.recorder import Recorder

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PARQUET = DATA / "criteo_terabyte_24576.parquet"
CSV = DATA / "criteo_kaggle_200.csv"


def trained(tmp_path: Path, plan: int, **changes: Any) -> Progress:
    document = plan_job(plan, max_rows=10_000, dim=16, batch_size=512)
    spec = document["spec"]
    spec["trainer"]["metricsPort"] = 0
    spec["trainer"]["maxWaitMs"] = 600_000
    spec["checkpoint"] = {"path": str(tmp_path / "checkpoints")}
    spec["optimizer"] = {"dense": {"adagrad": {"lr": 0.02}}, "embedding": {"rowwiseAdagrad": {"lr": 0.05}}}
    spec.update(changes)
    recorder = Recorder()
    ending = train(check_job(document), display=Display([recorder]))
    assert ending.code == ExitCode.DONE, ending.reason
    last = recorder.outcomes[0].last
    assert last is not None
    return last


@pytest.mark.skipif(not PARQUET.exists(), reason="the real rows are not here")
def test_plan_1_learns_from_real_rows(tmp_path: Path) -> None:
    last = trained(tmp_path, 1, source={"files": {"path": str(PARQUET)}})
    assert (last.step, last.rows, last.bad_rows) == (48, 24_576, 0)
    assert last.life_auc is not None
    assert last.life_auc > 0.55


@pytest.mark.skipif(not CSV.exists(), reason="the real rows are not here")
def test_plan_0_trains_on_the_form_criteo_publishes(tmp_path: Path) -> None:
    csv = {"columnNames": ["label", "int_{0..12}", "cat_{0..25}"], "hexColumns": ["cat_{0..25}"]}
    source = {"files": {"path": str(CSV), "format": "csv", "csv": csv}}
    last = trained(tmp_path, 0, source=source)
    assert (last.step, last.rows, last.bad_rows) == (1, 200, 0)
