"""What ranks decide from each other's messages: a pure function, checked over all kinds of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.step.agreement import Message, Messages, decide, starved
from rap_trainer.step.clock import Clock
from rap_trainer.step.host_exchange import CACHE_LINE_BYTES

FULL = 8
KINDS = get_type_hints(Message)
LONG = st.integers(-(2**63), 2**63 - 1)
SIZES = {"rows": st.integers(0, 2**31 - 1), "failure": st.integers(0, 255)}
MESSAGES = st.lists(
    st.builds(
        Message,
        rows=st.integers(0, FULL),
        ended=st.booleans(),
        stop=st.booleans(),
        failure=st.sampled_from([0, 0, 0, 2, 3, 4, 5, 1]),
        flush=st.booleans(),
        checkpoint=st.booleans(),
        report=st.booleans(),
        **dict.fromkeys(["ready_plan", "refused_plan", "seen_rows", "bad_rows"], LONG),
    ),
    min_size=1,
    max_size=4,
)


@given(
    messages=st.lists(
        st.builds(
            Message, **{name: st.booleans() if kind is bool else SIZES.get(name, LONG) for name, kind in KINDS.items()}
        ),
        min_size=1,
    )
)
def test_messages_arrive_as_they_were_sent(messages: list[Message]) -> None:
    arrived = Messages(b"".join(message.packed() for message in messages))
    assert list(map(Message._make, zip(*arrived.every, strict=True))) == messages
    assert [type(values[0]) for values in arrived.every] == list(KINDS.values())
    assert arrived.rows == tuple(message.rows for message in messages)
    assert arrived.totals() == (
        sum(message.seen_rows for message in messages),
        sum(message.bad_rows for message in messages),
    )


@given(rows=st.lists(st.integers(0, FULL), min_size=1, max_size=8), seen=LONG, room=st.booleans())
def test_ranks_that_only_offer_rows_decide_what_the_reading_of_every_field_decides(
    rows: list[int], seen: int, room: bool
) -> None:
    heard = Messages.of([Message(rows=count, ended=False, seen_rows=seen) for count in rows])
    assert heard.at_rest
    read = Messages.of([Message(rows=count, ended=False, seen_rows=seen) for count in rows])
    read.at_rest = False
    assert decide(heard, room=room, shares=shares) == decide(read, room=room, shares=shares)
    assert heard.rows == tuple(rows)
    assert heard.totals() == (seen * len(rows), 0)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("rows", "seen_rows", "bad_rows")])
def test_whatever_else_a_rank_says_is_not_passed_over(name: str) -> None:
    assert not Messages.of([ready(), ready(**{name: KINDS[name](1)})]).at_rest


def test_a_message_fills_no_more_than_a_line_of_a_cache() -> None:
    assert len(ready().packed()) + 8 <= CACHE_LINE_BYTES, "the round and the checksum are in it too"


def shares(ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None:
    if flush:
        return tuple(ready) if any(ready) else None
    return tuple(FULL for _ in ready) if all(rows == FULL for rows in ready) else None


def ready(**changes: object) -> Message:
    return Message(**{"rows": FULL, "ended": False, **changes})  # type: ignore[arg-type]


@given(messages=MESSAGES, room=st.booleans())
def test_a_failure_of_any_rank_ends_all_and_nothing_else_is_done(messages: list[Message], room: bool) -> None:
    decision = decide(Messages.of(messages), room=room, shares=shares)
    failures = [message.failure for message in messages if message.failure]
    assert decision.failure == min(failures, default=0)
    if failures:
        assert decision.shares is None
        assert not decision.checkpoint


@given(messages=MESSAGES, room=st.booleans())
def test_no_step_is_prepared_once_it_is_the_last(messages: list[Message], room: bool) -> None:
    decision = decide(Messages.of(messages), room=room, shares=shares)
    assert not (decision.last and decision.shares)
    if decision.shares is not None:
        assert room
        assert sum(decision.shares) > 0
        assert all(share <= message.rows for share, message in zip(decision.shares, messages, strict=True))


@given(messages=MESSAGES)
def test_the_run_ends_only_when_every_rank_has_ended_and_no_row_is_left(messages: list[Message]) -> None:
    decision = decide(Messages.of(messages), room=True, shares=shares)
    if decision.ended:
        assert all(message.ended and message.rows == 0 for message in messages)


def test_a_rank_without_rows_makes_all_wait_for_a_full_step() -> None:
    decision = decide(Messages.of([ready(), ready(rows=3)]), room=True, shares=shares)
    assert decision.shares is None
    assert not decision.last


def test_a_partial_step_is_trained_when_the_first_rank_says_so() -> None:
    late = [ready(flush=True), ready(rows=0)]
    assert decide(Messages.of(late), room=True, shares=shares).shares == (FULL, 0)
    others_clock = [ready(), ready(rows=0, flush=True)]
    assert decide(Messages.of(others_clock), room=True, shares=shares).shares is None


def test_the_last_rows_of_an_ended_source_are_trained_without_waiting() -> None:
    last = [ready(rows=2, ended=True), ready(rows=0, ended=True)]
    assert decide(Messages.of(last), room=True, shares=shares).shares == (2, 0)


def test_max_steps_ends_the_run_with_rows_left() -> None:
    assert decide(Messages.of([ready()]), room=False, shares=shares).ended


@pytest.mark.parametrize(("since_s", "due"), [(0.4, False), (0.5, True), (7.0, True)])
def test_the_clock_says_when_a_partial_step_is_due(since_s: float, due: bool) -> None:
    clock = Clock.starting(100.0, checkpoint_every_s=10.0, report_every_s=1.0, max_wait_s=0.5)
    assert clock.flush_due(100.0 + since_s) is due
    clock.stepped_s = 100.0 + since_s
    assert not clock.flush_due(100.0 + since_s)


def test_the_reason_for_no_step_names_the_ranks_that_lack_rows() -> None:
    reason = starved([8, 0, 3], batch_rows=8, seconds=31.4)
    assert reason.startswith("no step for 31 s: of the 8 rows that each rank needs, rank 1 has 0, rank 2 has 3; hint: ")
    assert "rank 0" not in reason
    assert "rank 3 has 0 and 28 more; " in starved([0] * 32, batch_rows=8, seconds=60.0)
