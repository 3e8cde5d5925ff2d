"""A job's story over its attempts: bounded, deterministic, and still there after a crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from display.story_samples import CHECKPOINT, NOW_S, OUTCOME, RUN, at_step
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.display import Event, History
from rap_trainer.display.history import read, to_text
from rap_trainer.display.story import MAX_EVENTS_OF_A_KIND, MAX_POINTS, Story


def story_of(num_points: int) -> Story:
    story = Story().with_(RUN)
    for step in range(num_points):
        story = story.with_(at_step(step))
    return story


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 5 * MAX_POINTS))
def test_points_stay_bounded_and_evenly_spread(num_points: int) -> None:
    story = story_of(num_points)
    assert len(story.points) <= MAX_POINTS
    steps = [point.step for point in story.points]
    assert steps == list(range(0, num_points, story.stride))
    if num_points > MAX_POINTS:
        assert len(steps) >= MAX_POINTS // 2


def test_a_resume_forgets_the_points_of_steps_that_are_made_again() -> None:
    story = story_of(100).with_(OUTCOME).with_(replace(RUN, attempt=3, resumed_step=60))
    assert [point.step for point in story.points] == list(range(61))
    assert story.outcome is None
    assert [run.attempt for run in story.runs] == [2, 3]


def test_how_an_attempt_ended_is_an_event_of_the_next() -> None:
    story = Story().with_(RUN).with_(replace(OUTCOME, exit_code=6, reason="another rank is gone"))
    assert story.events == ()
    (end,) = story.with_(replace(RUN, attempt=3)).events
    assert (end.kind, end.text, end.step) == ("end", "another rank is gone (exit code 6)", 1234)


def test_a_resume_of_a_thinned_story_goes_on_with_the_same_stride() -> None:
    story = story_of(2 * MAX_POINTS + 1).with_(replace(RUN, resumed_step=1000))
    assert story.stride == 4
    for step in range(1001, 3 * MAX_POINTS):
        story = story.with_(at_step(step))
    gaps = {b.step - a.step for a, b in zip(story.points, story.points[1:], strict=False)}
    assert gaps == {story.stride}


def test_events_are_bounded_by_kind_so_that_checkpoints_do_not_push_out_a_restart() -> None:
    restart = Event(time_s=NOW_S, kind="restart", text="rank 1 was lost", step=5)
    story = Story().with_(restart)
    for step in range(500):
        story = story.with_(replace(CHECKPOINT, step=step))
    assert story.events[0] == restart
    assert [event.step for event in story.events[1:]] == list(range(500 - MAX_EVENTS_OF_A_KIND, 500))


def test_a_file_gives_back_the_story(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.jsonl"
    history = History(path)
    history.start(RUN)
    for step in range(50):
        history.update(at_step(step))
    history.event(CHECKPOINT)
    assert replace(read(path), num_reports=50) == history.story, "already before the end"
    history.finish(OUTCOME)
    assert replace(read(path), num_reports=50) == history.story


def test_any_character_in_a_text_comes_back(tmp_path: Path) -> None:
    history, event = History(tmp_path / "history.jsonl"), replace(CHECKPOINT, text="a\nb\u2028c\x85d\x0ce é \udcff")
    history.start(RUN)
    history.event(event)
    assert read(tmp_path / "history.jsonl").events == (event,)


def test_the_next_attempt_goes_on_where_the_curve_was(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    first = History(path)
    first.start(RUN)
    for step in range(40):
        first.update(at_step(step))
    second = History(path)
    second.start(replace(RUN, attempt=3, resumed_step=30))
    second.update(at_step(31))
    assert [point.step for point in read(path).points] == [*range(31), 31]
    assert [run.attempt for run in read(path).runs] == [2, 3]


def test_an_attempt_killed_in_the_middle_of_a_line_loses_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.start(RUN)
    for step in range(10):
        history.update(at_step(step))
    whole = path.read_text()
    path.write_text(whole[: -len(whole.splitlines()[-1]) // 2])
    after = History(path)
    after.start(replace(RUN, resumed_step=100))
    assert [point.step for point in after.story.points] == list(range(9))


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe garbage\n\n", b'{"type": "story", "stride": -3}\n'])
def test_a_file_that_is_no_history_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    history = History(path)
    history.start(RUN)
    history.update(at_step(1))
    assert len(read(path).points) == 1
    assert read(path).stride == 1


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.start(RUN)
    most = 0
    for step in range(3 * MAX_EVENTS_OF_A_KIND):
        history.event(replace(CHECKPOINT, step=step))
        most = max(most, len(path.read_text().splitlines()))
    assert most <= 2 * (MAX_EVENTS_OF_A_KIND + 1) + 2


def test_the_same_reports_give_the_same_file() -> None:
    assert to_text(story_of(MAX_POINTS + 7)) == to_text(story_of(MAX_POINTS + 7))


def test_no_file_is_an_empty_story(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == Story()
