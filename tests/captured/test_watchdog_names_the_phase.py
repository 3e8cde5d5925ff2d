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


class Stream:
    idle = False


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def progress() -> Progress:
    return Progress(CPU, Lane(CPU))


@pytest.fixture
def dog(progress: Progress, reports: list[str], stream: Stream) -> Iterator[Watchdog]:
    watchdog = Watchdog(3, progress, limit_s=600, idle=lambda: stream.idle, report=reports.append)
    yield watchdog
    watchdog.close()


def enter(progress: Progress, phases: int) -> None:
    for _ in range(phases):
        progress.enter()


def test_a_step_that_does_not_end_is_reported_once_with_rank_step_and_phase(
    dog: Watchdog, progress: Progress, reports: list[str]
) -> None:
    enter(progress, 2)
    dog.check(0.0)
    enter(progress, len(PHASES) + 1)
    dog.check(590.0)
    dog.check(1180.0)
    assert reports == []
    dog.check(1191.0)
    dog.check(1800.0)
    assert len(reports) == 1
    assert "rank 3: step 2 since the capture has not finished for 601 s" in reports[0]
    assert "'gradient exchange'" in reports[0]
    enter(progress, 2)
    dog.check(1801.0)
    dog.check(2402.0)
    assert "step 3 since the capture has not finished for 601 s; it is in 'lookup and output exchange'" in reports[1]


def test_a_rank_without_work_hangs_nowhere(
    dog: Watchdog, progress: Progress, reports: list[str], stream: Stream
) -> None:
    enter(progress, len(PHASES))
    dog.check(0.0)
    stream.idle = True
    for now_s in (599.0, 1e6):
        dog.check(now_s)
    stream.idle = False
    dog.check(1e6 + 1)
    dog.check(1e6 + 600)
    assert reports == []


def test_a_gpu_that_answers_nothing_is_reported_too(reports: list[str], stream: Stream) -> None:
    dog = Watchdog(1, Silent(CPU, Lane(CPU)), limit_s=600, idle=lambda: stream.idle, report=reports.append)
    dog.check(0.0)
    dog.check(601.0)
    dog.close()
    assert len(reports) == 1
    assert "answers no copies" in reports[0]


def test_phases_follow_each_other_and_count_steps(progress: Progress) -> None:
    for step in (1, 2):
        for phase in PHASES:
            progress.enter()
            assert progress.read() == (step, phase)
    progress.restart()
    progress.enter()
    assert progress.read() == (1, PHASES[0])
