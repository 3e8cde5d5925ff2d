"""Servers of one test run, whichever process starts them, never get the same port."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from servers import processes

FEW = range(31000, 31100)
NUM = 30
OTHER = f"""
from servers import processes
processes.PORT_RANGE = range({FEW.start}, {FEW.stop + 100})  # so that 200 can be drawn
print(*(processes.free_port() for _ in range({NUM})))
"""


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PORT_RANGE", FEW)
    monkeypatch.setattr("random.SystemRandom", Whole)
    mine = [processes.free_port() for _ in range(NUM)]
    answer = subprocess.run(
        [sys.executable, "-c", OTHER],
        env={"PYTHONPATH": str(Path(processes.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    others = [int(port) for port in answer.stdout.split()]
    assert len({*mine, *others}) == 2 * NUM


class Whole:
    """Tries every port, in order."""

    def sample(self, ports: range, size: int) -> list[int]:
        return list(ports)
