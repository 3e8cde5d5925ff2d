"""Criteo's real rows through the whole job: plan 1 on the Terabyte sample, plan 0's features on the Kaggle CSV."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rap_contract.pod import ExitCode
from rap_contract.validation import check_job
from rap_trainer.display import Display
from rap_trainer.plans import plan_job
from rap_trainer.train import train
from train.recorder import Recorder

ROWS_OF_TABLES = 20_000  # caps every table, so that two cores and 2 GB are enough
DIM = 16
DATA = Path(os.environ.get("RAP_SHARED_DATA", "../shared/data"))

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the folder with Criteo's real rows is not here")


def run(folder: Path, document: dict[str, Any]) -> Recorder:
    document["spec"]["checkpoint"] = {"path": str(folder / "checkpoints"), "intervalSeconds": 3600}
    document["spec"]["trainer"]["metricsPort"] = 0
    recorder = Recorder()
    ending = train(check_job(document), display=Display([recorder]))
    assert ending.code == ExitCode.DONE, ending.reason
    return recorder


def test_plan_1_learns_from_the_terabyte_rows(tmp_path: Path) -> None:
    path = DATA / "criteo_terabyte_24576.parquet"
    document = plan_job(1, path=str(path), max_rows=ROWS_OF_TABLES, dim=DIM, batch_size=512)
    document["spec"]["optimizer"] = {"dense": {"adagrad": {"lr": 0.01}}, "embedding": {"rowwiseAdagrad": {"lr": 0.02}}}
    recorder = run(tmp_path, document)
    last = recorder.outcomes[0].last
    assert last is not None
    assert last.rows == 24_576
    assert last.bad_rows == 0
    # one pass, each row scored before it is learned from: better than chance, not yet good
    assert last.auc is not None
    assert last.auc > 0.55


def test_plan_0_trains_on_the_kaggle_csv_with_its_hexadecimal_categories(tmp_path: Path) -> None:
    path = DATA / "criteo_kaggle_200.csv"
    document = plan_job(0, path=str(path), max_rows=ROWS_OF_TABLES, dim=DIM, batch_size=32)
    names = ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]
    document["spec"]["columns"]["cat_{0..25}"] = "int64"
    for group in document["spec"]["features"]:
        group["ops"] = [op for op in group["ops"] if "firstx" not in op]  # one id a row already
    csv = {"columnNames": names, "hexColumns": ["cat_{0..25}"]}
    document["spec"]["source"] = {"files": {"path": str(path), "format": "csv", "csv": csv}}
    recorder = run(tmp_path, document)
    outcome = recorder.outcomes[0]
    assert (outcome.rows, outcome.steps) == (200, 7)
