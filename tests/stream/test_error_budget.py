"""The error budget counts bad rows of a sliding window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.stream.error_budget import NUM_SEGMENTS, ErrorBudgetWindow

PARTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda p: (max(p), min(p))), max_size=60)


def after(window: ErrorBudgetWindow, parts: list[tuple[int, int]]) -> ErrorBudgetWindow:
    for rows, bad_rows in parts:
        window = window.after(rows=rows, bad_rows=bad_rows)
    return window


def test_one_bad_row_among_the_first_does_not_exceed_a_budget_of_one_percent() -> None:
    window = ErrorBudgetWindow(ratio=0.01, window_rows=1000).after(rows=10, bad_rows=1)
    assert not window.exceeded


def test_the_budget_is_exceeded_by_the_first_row_too_many_before_the_window_is_full() -> None:
    window = ErrorBudgetWindow(ratio=0.01, window_rows=1000)
    assert not window.after(rows=10, bad_rows=10).exceeded
    assert window.after(rows=11, bad_rows=11).exceeded


def test_old_bad_rows_leave_the_window() -> None:
    window = ErrorBudgetWindow(ratio=0.01, window_rows=1000).after(rows=10, bad_rows=10)
    for _ in range(110):
        window = window.after(rows=10, bad_rows=0)
    assert window.bad_rows == 0


def test_at_the_end_the_rows_seen_are_the_window() -> None:
    window = ErrorBudgetWindow(ratio=0.1, window_rows=1000)
    assert not window.after(rows=20, bad_rows=2).exceeded_at_end
    assert window.after(rows=20, bad_rows=3).exceeded_at_end
    assert not window.exceeded_at_end


def test_a_ratio_of_one_allows_everything_and_of_zero_nothing() -> None:
    assert not ErrorBudgetWindow(ratio=1, window_rows=5).after(rows=50, bad_rows=5).exceeded
    assert ErrorBudgetWindow(ratio=0, window_rows=5).after(rows=1, bad_rows=1).exceeded


@given(parts=PARTS, window_rows=st.integers(1, 500))
def test_the_window_holds_the_last_rows_to_within_a_segment(parts: list[tuple[int, int]], window_rows: int) -> None:
    window = after(ErrorBudgetWindow(ratio=0.5, window_rows=window_rows), parts)
    total = sum(rows for rows, _ in parts)
    largest = max([rows for rows, _ in parts] + [window_rows // NUM_SEGMENTS + 1])
    assert min(total, window_rows) <= window.rows <= window_rows + largest
    assert window.bad_rows <= sum(bad for _, bad in parts)
    assert len(window.segments) <= 2 * NUM_SEGMENTS + 2 + window_rows % NUM_SEGMENTS
