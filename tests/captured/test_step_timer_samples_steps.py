"""The timer of captured steps, with events that a test passes and finishes."""

from __future__ import annotations

import pytest
import torch
from rap_trainer.captured.step_timer import EVERY, PART, StepTimer

CPU = torch.device("cpu")


class Event:
    """A CUDA event of a GPU that takes 3 ms a step and is as far as `done` says."""

    done = True
    recorded = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.recorded += 1

    def query(self) -> bool:
        return Event.done

    def elapsed_time(self, end: Event) -> float:
        return 3.0


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> StepTimer:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "recorded", 0)
    monkeypatch.setattr(Event, "done", True)
    return StepTimer(CPU)


def steps(timer: StepTimer, number: int) -> None:
    for _ in range(number):
        timer.begin()
        timer.end()


def test_one_step_in_many_is_timed_and_stands_for_all(timer: StepTimer) -> None:
    steps(timer, 3 * EVERY)
    assert Event.recorded == 6
    assert timer.take()[PART] == pytest.approx(3 * EVERY * 3e-3)
    steps(timer, 5)
    assert timer.take()[PART] == pytest.approx(5 * 3e-3)
    assert timer.take().get(PART, 0.0) == 0.0


def test_a_gpu_that_is_behind_is_not_waited_for(timer: StepTimer) -> None:
    steps(timer, EVERY)
    Event.done = False
    assert timer.take()[PART] == 0.0
    steps(timer, EVERY)
    assert Event.recorded == 2  # the events are still on their way and are not recorded anew
    Event.done = True
    assert timer.take()[PART] == pytest.approx(EVERY * 3e-3)


def test_host_parts_are_counted_beside_it(timer: StepTimer) -> None:
    with timer.host("data"):
        pass
    assert "data" in timer.take()
