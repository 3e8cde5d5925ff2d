"""Whatever features their tables' owners preprocess for all ranks, and whenever that changes, every loss is the same, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from servers.processes import free_port

CASES, NUM_RANKS = 4, 2
TIMEOUT_S = 600
pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks print of their cases."""
    folder, tests = tmp_path_factory.mktemp("owners"), Path(__file__).parents[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(NUM_RANKS),
        "OMP_NUM_THREADS": "1",
    }
    common |= {"LOCAL_WORLD_SIZE": str(NUM_RANKS), "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, str(tests / "planner" / "owner_ranks.py"), str(CASES)]
    with ExitStack() as stack:  # files, for a pipe that nobody reads would stop a rank, and so all
        ranks = []
        for rank in range(NUM_RANKS):
            output = stack.enter_context((folder / f"{rank}.out").open("w"))
            errors = stack.enter_context((folder / f"{rank}.err").open("w"))
            environment = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors)
            stack.enter_context(process)
            stack.callback(process.kill)
            ranks.append(process)
        codes = [process.wait(timeout=TIMEOUT_S) for process in ranks]
    assert codes == [0] * NUM_RANKS, [path.read_text()[-3000:] for path in sorted(folder.glob("*.err"))]
    lines = [line for path in sorted(folder.glob("*.out")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_any_mapping_and_any_switch_leave_every_loss_as_it_was(said: list[dict[str, Any]]) -> None:
    cases = [line for line in said if line["case"] == "losses"]
    assert len(cases) == CASES * NUM_RANKS
    assert all(line["equal"] for line in cases), cases
    assert max(moved for line in cases for moved in line["moved"]) >= 5


def test_a_rank_that_does_not_own_the_table_is_refused_by_all(said: list[dict[str, Any]]) -> None:
    reasons = [line["reason"] for line in said if line["case"] == "refused"]
    assert len(reasons) == NUM_RANKS
    assert all("plan again with --owners" in reason for reason in reasons)


def test_a_rank_without_its_columns_tells_the_others_and_none_hangs(said: list[dict[str, Any]]) -> None:
    reasons = {line["rank"]: line["reason"] for line in said if line["case"] == "failed"}
    assert "is missing from the batch" in reasons[1]
    assert "rank 1 cannot give the raw columns" in reasons[0]
