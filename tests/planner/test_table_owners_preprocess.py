"""Whatever features their tables' owners preprocess for all ranks, and whenever that changes, every loss is the same, bit for bit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES, NUM_RANKS = 6, 2
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    """What two ranks print of their cases."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tests = Path(__file__).parents[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(NUM_RANKS),
        "OMP_NUM_THREADS": "1",
    }
    common |= {"LOCAL_WORLD_SIZE": str(NUM_RANKS), "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, str(tests / "planner" / "owner_ranks.py"), str(CASES)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(NUM_RANKS)
    ]
    found: list[dict[str, Any]] = []
    try:
        for process in ranks:
            output, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, errors[-4000:]
            found += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    finally:
        for process in ranks:
            process.kill()
    return found


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
