"""Events of one job carry times that grow, since kubectl sorts them by whole seconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rap_operator.events import EventSink
from rap_operator.notice import Notice

REASONS = ("ReplanApplying", "ReplanSwitched", "ReplanConfirmed")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.25

    def __call__(self) -> float:
        return self.now_s


def told(clock: Clock) -> tuple[EventSink, list[dict[str, Any]]]:
    written: list[dict[str, Any]] = []
    api = SimpleNamespace(create=lambda resource, namespace, item: written.append(item))
    return EventSink(api, wall_clock=clock), written


def job(uid: str) -> Any:
    return SimpleNamespace(
        uid=uid, namespace="ads", name=uid, base=uid, resource_version="7", status=SimpleNamespace(attempt=None)
    )


def test_events_of_one_second_are_sorted_as_they_were_told() -> None:
    clock = Clock()
    sink, written = told(clock)
    for reason in REASONS:
        sink.tell(job("clicks"), Notice(level="Normal", reason=reason, message=reason))
    sink.tell(job("views"), Notice(level="Normal", reason="ReplanApplying", message="another job's"))
    times = [event["lastTimestamp"] for event in written]
    assert times[:3] == ["2027-01-15T08:00:00Z", "2027-01-15T08:00:01Z", "2027-01-15T08:00:02Z"]
    assert times[3] == times[0], "another job has a time of its own"


def test_a_clock_that_was_set_back_is_followed() -> None:
    clock = Clock()
    sink, written = told(clock)
    sink.tell(job("clicks"), Notice(level="Normal", reason=REASONS[0], message="before"))
    clock.now_s -= 3600
    sink.tell(job("clicks"), Notice(level="Normal", reason=REASONS[1], message="after"))
    assert [event["lastTimestamp"] for event in written] == ["2027-01-15T08:00:00Z", "2027-01-15T07:00:00Z"]
