"""The watchdog of captured steps, with events and time given to it."""

from __future__ import annotations

import time

import pytest
import torch
from rap_trainer.captured.lanes import Lane
from rap_trainer.captured.watchdog import PHASES, Progress, Watchdog

CPU = torch.device("cpu")


class Event:
    """Done when it is told so."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


@pytest.fixture
def reports() -> list[str]:
    return []


def test_a_step_that_does_not_end_is_reported_once_with_rank_step_and_phase(reports: list[str]) -> None:
    progress = Progress(CPU, Lane(CPU))
    dog = Watchdog(3, progress, limit_s=600, report=reports.append)
    first, second = Event(), Event()
    dog.replayed(first)  # type: ignore[arg-type]  # stands in for a CUDA event
    dog.replayed(second)  # type: ignore[arg-type]
    progress.enter("gradient exchange")
    dog.check(time.monotonic())
    assert reports == []
    first.done = True
    for _ in range(2):
        dog.check(time.monotonic() + 601)
    assert len(reports) == 1
    assert "rank 3: step 2" in reports[0]
    assert "'gradient exchange'" in reports[0]
    second.done = True
    dog.check(time.monotonic() + 1200)
    assert len(reports) == 1
    dog.close()


def test_the_phase_after_a_step_is_the_next_steps_first() -> None:
    progress = Progress(CPU, Lane(CPU))
    for phase in PHASES[1:]:
        progress.enter(phase)
        assert progress.read() == phase
    progress.finish()
    assert progress.read() == PHASES[0]
