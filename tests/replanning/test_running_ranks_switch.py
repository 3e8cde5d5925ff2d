"""Two running ranks change their plan: no row lost or learned twice, the model as without a change, a kill in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from rap_contract.pod import ENV_PLAN_FILE, ExitCode
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from replanning.made_plans import made_plan
from train.forge import Forge, Run, until
from train.saved_state import assert_equal, newest
from train.small_jobs import small_job, write_events, write_job
from train.watching import has_checkpoint, steps_begun

STEPS = 600
PLANS = ("emb_fwd", "mlp_bwd", "grad_dist")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    write_events(folder, rows=STEPS * 32)
    return folder / "events"


def start(folder: Path, events: Path, forge: Forge, **changes: object) -> Run:
    """A run of two ranks with a plan file that is not there yet."""
    folder.mkdir()
    job = write_job(folder, source={"files": {"path": str(events)}}, trainer__processesPerNode=2, **changes)
    environment = {ENV_LEDGER: str(folder / "ledger"), ENV_PLAN_FILE: str(folder / "plan.json")}
    return forge.start(job, num_ranks=2, environment=environment)


def put(folder: Path, window: str) -> str:
    """A plan in the file, at once, as a kubelet does it."""
    plan = made_plan(small_job(folder, trainer__processesPerNode=2), window, num_ranks=2)
    aside = folder / "aside.json"
    aside.write_text(plan.to_json())
    aside.rename(folder / "plan.json")
    return plan.hash


def test_plans_change_while_ranks_train_and_nothing_of_the_model_does(
    tmp_path: Path, events: Path, forge: Forge
) -> None:
    calm = start(tmp_path / "calm", events, forge)
    assert calm.wait() == ExitCode.DONE, calm.output
    folder = tmp_path / "changing"
    run = start(folder, events, forge)
    until(lambda: steps_begun(folder / "ledger") >= 3, "three steps")
    for window in PLANS[:2]:
        name = put(folder, window)
        until(lambda name=name: f"plan {name} takes the place of" in run.output, f"the switch to {window}")
    assert steps_begun(folder / "ledger") < STEPS, "the plans changed while it trained"
    assert run.wait() == ExitCode.DONE, run.output
    assert_equal(newest(tmp_path / "calm"), newest(folder), tolerance=0.0)
    for steps in replay(folder / "ledger").values():
        assert gaps(steps) == []
        assert len(steps) == STEPS


def test_a_rank_killed_while_a_plan_arrives_restarts_into_it(tmp_path: Path, events: Path, forge: Forge) -> None:
    folder = tmp_path / "killed"
    run = start(folder, events, forge, checkpoint__intervalSeconds=0.3)
    until(lambda: has_checkpoint(folder), "a checkpoint")
    name = put(folder, PLANS[2])
    run.kill_rank(1)
    assert run.wait() == ExitCode.DONE, run.output
    assert f"plan {name} is not run" not in run.output
    for steps in replay(folder / "ledger").values():
        assert gaps(steps) == []
        assert len(steps) == STEPS
