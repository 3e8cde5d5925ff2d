"""`rap run` with two ranks as processes: equal to one rank, stopped, killed, resumed on another number."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from rap_contract.pod import ExitCode
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.display import Display
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from rap_trainer.train import train
from rap_trainer.world import ENV_PEER_TIMEOUT
from servers.processes import free_port
from train.forge import Forge, until
from train.kill_run import kill_at_random_steps
from train.recorder import Recorder
from train.saved_state import assert_equal, newest, steps
from train.small_jobs import small_job, write_events, write_job
from train.watching import has_checkpoint, steps_begun

TOLERANCE = 2e-6
"""Absolute, after 21 steps; 1.5e-7 seen after 188."""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    write_events(folder, rows=321)  # the last step has one row: none on the first rank
    return folder / "events"


def test_two_ranks_of_half_a_batch_equal_one_and_resume_on_one_rank(tmp_path: Path, events: Path, forge: Forge) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    source = {"files": {"path": str(events)}}
    train(small_job(one, source=source))
    two.mkdir()
    halved = {"source": source, "trainer__batchSizePerGpu": 8}
    run = forge.start(write_job(two, trainer__maxSteps=9, **halved), num_ranks=2)
    assert run.wait() == ExitCode.DONE, run.output
    assert read_manifest(newest(two)).world_size == 2
    recorder = Recorder()
    train(small_job(two, source=source, trainer__maxSteps=15), display=Display([recorder]))
    assert recorder.runs[0].resumed_step == 9
    run = forge.start(write_job(two, **halved), num_ranks=2)
    assert run.wait() == ExitCode.DONE, run.output
    assert steps(two) == [21, 15, 9]
    assert_equal(newest(one), newest(two), tolerance=TOLERANCE)


def test_ranks_that_torchrun_starts_train_as_those_of_rap_run(tmp_path: Path, events: Path, forge: Forge) -> None:
    job = write_job(tmp_path, source={"files": {"path": str(events)}}, trainer__maxSteps=3)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    runs = [
        forge.start(job, num_ranks=2, environment={**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")
    ]
    assert [run.wait() for run in runs] == [ExitCode.DONE] * 2, [run.output for run in runs]
    assert read_manifest(newest(tmp_path)).world_size == 2
    assert steps(tmp_path) == [3]


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A followed directory that never ends."""
    write_events(tmp_path, rows=60_000)
    return tmp_path


def test_sigterm_ends_all_ranks_after_one_checkpoint(endless: Path, forge: Forge) -> None:
    ledger = endless / "ledger"
    run = forge.start(write_job(endless), num_ranks=2, environment={ENV_LEDGER: str(ledger)})
    until(lambda: steps_begun(ledger) >= 3, "three steps")
    run.send(signal.SIGTERM)
    assert run.wait() == ExitCode.TERMINATED, run.output
    (step,) = steps(endless)
    assert step == steps_begun(ledger, 0) == steps_begun(ledger, 1)


def test_the_first_ctrl_c_saves_and_the_second_stops_at_once(endless: Path, forge: Forge) -> None:
    ledger = endless / "ledger"
    run = forge.start(write_job(endless), num_ranks=2, environment={ENV_LEDGER: str(ledger)})
    until(lambda: steps_begun(ledger) >= 1, "a step")
    for rank in (0, 1):
        run.freeze_rank(rank)  # so that no checkpoint can end before the second Ctrl-C
    run.send(signal.SIGINT)
    until(lambda: "Ctrl-C again" in run.output, "the first is noted")
    run.send(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert steps(endless) == []


def test_a_lost_rank_ends_the_others_with_a_clear_word(endless: Path, forge: Forge) -> None:
    ledger = endless / "ledger"
    job = write_job(endless, restartPolicy__maxRestarts=0, checkpoint__intervalSeconds=0.2)
    run = forge.start(job, num_ranks=2, environment={ENV_LEDGER: str(ledger)})
    until(lambda: has_checkpoint(endless), "a checkpoint")
    run.kill_rank(1)
    assert run.wait() == 128 + signal.SIGKILL, run.output
    assert "another rank is gone" in run.output
    assert steps(endless)


def test_a_rank_that_falls_silent_is_lost_and_never_a_hang(endless: Path, forge: Forge) -> None:
    ledger = endless / "ledger"
    environment = {ENV_LEDGER: str(ledger), ENV_PEER_TIMEOUT: "2"}
    run = forge.start(write_job(endless, restartPolicy__maxRestarts=0), num_ranks=2, environment=environment)
    until(lambda: steps_begun(ledger) >= 1, "a step")
    run.freeze_rank(1)
    assert run.wait() == ExitCode.PEER_LOST, run.output
    assert "another rank is gone" in run.output


def test_kills_at_random_steps_leave_the_model_of_an_uninterrupted_run(tmp_path: Path, forge: Forge) -> None:
    kill_at_random_steps(tmp_path, forge, kills=4, rows=4_000, choose=random.Random(11))


@pytest.mark.slow
def test_thirty_kills_at_random_steps_leave_the_model_of_an_uninterrupted_run(tmp_path: Path, forge: Forge) -> None:
    kill_at_random_steps(tmp_path, forge, kills=30, rows=30_000, choose=random.Random(30))


def test_the_ledger_shows_what_is_missing_and_what_is_double(tmp_path: Path) -> None:
    lines = [
        '{"attempt":1,"resumed_step":0}',
        '{"step":1,"rows":2,"spans":{"a":[null,[2,0]]}}',
        '{"step":2,"rows":2,"spans":{"a":[[2,0],[4,0]]}}',
        '{"attempt":2,"resumed_step":1}',
        '{"step":2,"rows":2,"spans":{"a":[[3,0],[5,0]]}}',
    ]
    (tmp_path / "rank-00000.jsonl").write_text("\n".join(lines))
    (text,) = gaps(replay(tmp_path)[0])
    assert "step 2, a: begins at" in text
    with (tmp_path / "rank-00000.jsonl").open("a") as file:
        file.write('\n{"step":2,"rows":2,"spans":{}}')
    with pytest.raises(ValueError, match="trains step 2 twice"):
        replay(tmp_path)
