"""An attempt runs the plan file its environment names, and trains without one that it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest
from planner.plans_of_jobs import any_plan
from rap_contract.pod import ENV_PLAN_FILE
from rap_trainer.display import Display
from rap_trainer.train import train
from train.recorder import Recorder
from train.saved_state import assert_equal, newest
from train.small_jobs import small_job, write_events

pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")


def test_an_attempt_begins_with_the_plan_its_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_events(tmp_path, rows=100)
    job = small_job(tmp_path)
    events = {"files": {"path": str(tmp_path / "events")}}
    for name, text in (
        ("none", None),
        ("plan", any_plan(job, ["emb_fwd", "grad_dist"]).to_json()),
        ("foreign", any_plan(job, ["emb_fwd"]).to_json().replace('"numRanks":1', '"numRanks":3')),
    ):
        (tmp_path / name).mkdir()
        file = tmp_path / f"{name}.json"
        if text is not None:
            file.write_text(text)
        monkeypatch.setenv(ENV_PLAN_FILE, str(file))
        train(small_job(tmp_path / name, source=events), display=Display([Recorder()]))
    assert_equal(newest(tmp_path / "none"), newest(tmp_path / "plan"))
    assert_equal(newest(tmp_path / "none"), newest(tmp_path / "foreign"))
    assert "the plan was changed after it was made" in caplog.text
