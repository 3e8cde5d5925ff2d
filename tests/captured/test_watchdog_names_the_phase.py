"""The watchdog of captured steps, with progress and time given to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from rap_trainer.captured.lanes import Lane
from rap_trainer.captured.watchdog import PHASES, Progress, Reading, Watchdog

CPU = torch.device("cpu")


class Silent(Progress):
    """A GPU that answers nothing any more."""

    def read(self) -> Reading | None:
        return None


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def progress() -> Progress:
    return Progress(CPU, Lane(CPU))


@pytest.fixture
def dog(progress: Progress, reports: list[str]) -> Iterator[Watchdog]:
    watchdog = Watchdog(3, progress, limit_s=600, report=reports.append)
    yield watchdog
    watchdog.close()


def test_a_step_that_does_not_end_is_reported_once_with_rank_step_and_phase(
    dog: Watchdog, progress: Progress, reports: list[str]
) -> None:
    dog.launched()
    dog.launched()
    dog.check(0.0)
    progress.finish()
    progress.enter("gradient exchange")
    dog.check(590.0)
    dog.check(1180.0)
    assert reports == []
    dog.check(1191.0)
    dog.check(1800.0)
    assert len(reports) == 1
    assert "rank 3: step 2 since the capture has not finished for 601 s" in reports[0]
    assert "'gradient exchange'" in reports[0]
    progress.finish()
    dog.check(3000.0)
    dog.check(9000.0)
    assert len(reports) == 1


def test_a_rank_without_work_hangs_nowhere(dog: Watchdog, progress: Progress, reports: list[str]) -> None:
    dog.check(0.0)
    dog.launched()
    progress.finish()
    dog.check(1.0)
    dog.check(1e6)
    progress.restart()
    dog.restart()
    dog.check(2e6)
    assert reports == []


def test_a_gpu_that_answers_nothing_is_reported_too(reports: list[str]) -> None:
    dog = Watchdog(1, Silent(CPU, Lane(CPU)), limit_s=600, report=reports.append)
    dog.launched()
    dog.check(0.0)
    dog.check(601.0)
    dog.close()
    assert len(reports) == 1
    assert "answers no copies" in reports[0]


def test_the_phase_after_a_step_is_the_next_steps_first(progress: Progress) -> None:
    for phase in PHASES[1:]:
        progress.enter(phase)
        assert progress.read() == (0, phase)
    progress.finish()
    assert progress.read() == (1, PHASES[0])
