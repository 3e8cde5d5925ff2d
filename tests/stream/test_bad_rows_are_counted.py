"""Bad rows of any source are counted, kept and bounded in one place."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from rap_contract.source import ErrorBudget
from rap_trainer.batch import Position
from rap_trainer.stream.bad_rows import BadRows
from rap_trainer.stream.dead_letters import DeadLetter
from rap_trainer.stream.source import DataBudgetExceeded, SourceError


class Kept:
    """Letters in memory; `full` stands for a disk without room."""

    def __init__(self, *, full: bool = False) -> None:
        self.letters: list[DeadLetter] = []
        self._full = full

    def write(self, letters: Sequence[DeadLetter]) -> None:
        if self._full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.letters += letters

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def letter(row: int, reason: str = "label") -> DeadLetter:
    return DeadLetter(
        reason=reason, detail=f"column label is {row}", unit="a.parquet", position=Position(row), payload=b"{}"
    )


def test_past_the_budget_the_message_has_the_counts_the_newest_row_and_what_to_do() -> None:
    kept = Kept()
    bad = BadRows(ErrorBudget(ratio=0.1, window_rows=20), kept, source="source.files")
    bad.seen(rows=10, bad_rows=2)
    bad.keep([letter(3), letter(7, "range")])
    bad.check()
    bad.seen(rows=1, bad_rows=1)
    bad.keep([letter(10)])
    with pytest.raises(DataBudgetExceeded) as stopped:
        bad.check()
    message = str(stopped.value)
    assert "3 of the last 11 rows are bad" in message
    assert "label: 2, range: 1; the newest: a.parquet:10: column label is 10" in message
    assert "raise source.files.errorBudget" in message
    assert [each.position.offset for each in kept.letters] == [3, 7, 10]


def test_at_the_end_the_rows_seen_are_the_window() -> None:
    bad = BadRows(ErrorBudget(ratio=0.1, window_rows=1000), None, source="source.files")
    bad.seen(rows=5, bad_rows=1)
    bad.keep([letter(4)])
    bad.check()
    with pytest.raises(DataBudgetExceeded):
        bad.check(at_end=True)


def test_a_letter_may_stand_for_many_rows() -> None:
    bad = BadRows(ErrorBudget(), Kept(), source="source.kafka")
    bad.seen(rows=40, bad_rows=31)
    bad.keep([letter(0, "message"), letter(35)], [30, 1])
    assert bad.counts == {"message": 30, "label": 1}
    assert bad.ratio == 31 / 40


def test_letters_that_cannot_be_kept_stop_the_source_with_the_place_to_change() -> None:
    bad = BadRows(ErrorBudget(), Kept(full=True), source="source.kafka")
    with pytest.raises(SourceError, match=r"No space left on device; hint: .*source\.kafka\.deadLetter"):
        bad.keep([letter(1)])
