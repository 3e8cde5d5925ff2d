"""kill -9 of ranks at random steps, and the proof that nothing is lost or counted twice."""

from __future__ import annotations

import random
from pathlib import Path

from rap_contract.pod import ExitCode
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from train.forge import Forge, until
from train.saved_state import assert_equal, newest
from train.small_jobs import write_events, write_job
from train.watching import steps_begun

BATCH = 8
RANKS = 2


def kill_at_random_steps(folder: Path, forge: Forge, *, kills: int, rows: int, choose: random.Random) -> None:
    """Trains `rows` rows twice, once with `kills` kills, and compares models and accounts."""
    whole, killed = folder / "whole", folder / "killed"
    whole.mkdir()
    killed.mkdir()
    write_events(folder, rows=rows, files=5)
    changes = {
        "source": {"files": {"path": str(folder / "events")}},
        "trainer__batchSizePerGpu": BATCH,
        "restartPolicy__maxRestarts": kills,
    }
    run = forge.start(write_job(whole, **changes), num_ranks=RANKS)
    assert run.wait() == ExitCode.DONE, run.output

    ledger = killed / "ledger"
    job = write_job(killed, checkpoint__intervalSeconds=0.3, **changes)
    run = forge.start(job, num_ranks=RANKS, environment={ENV_LEDGER: str(ledger)})
    total = -(-rows // (BATCH * RANKS))
    for _ in range(kills):
        # Steps begun, repeated ones too: this many more is always reached before the end, for the newest checkpoint
        # is at most as far as the steps begun.
        wanted = steps_begun(ledger) + choose.randrange(1, max(2, total // (2 * kills)))
        until(lambda wanted=wanted: steps_begun(ledger) >= wanted, f"{wanted} steps are begun")
        run.kill_rank(choose.randrange(RANKS))
    assert run.wait() == ExitCode.DONE, run.output

    assert read_manifest(newest(killed)).attempt == kills + 1
    assert_equal(newest(whole), newest(killed))
    account = replay(ledger)
    assert sum(step.rows for steps in account.values() for step in steps.values()) == rows
    for steps in account.values():
        assert len(steps) == total
        assert gaps(steps) == []
