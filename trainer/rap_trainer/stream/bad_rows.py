"""What becomes of a source's bad rows: counted by reason, kept as dead letters, bounded by the job's error budget.

Every source has one; it knows neither files nor messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rap_contract.source import ErrorBudget

from rap_trainer.stream.dead_letters import DeadLetter, DeadLetters, FileDeadLetters, place
from rap_trainer.stream.error_budget import ErrorBudgetWindow
from rap_trainer.stream.source import DataBudgetExceeded, SourceError


class BadRows:
    """Bad rows of one rank or of one file. `source` is the path in the job of what they come from, for hints.

    `letters` None: they are only counted, because another rank keeps them.
    """

    def __init__(self, budget: ErrorBudget, letters: DeadLetters | None, *, source: str) -> None:
        self._window = ErrorBudgetWindow(ratio=budget.ratio, window_rows=budget.window_rows)
        self._letters, self._source = letters, source
        self._newest = ""
        self.counts: Counter[str] = Counter()
        """By reason, from the start."""

    @property
    def allowed_ratio(self) -> float:
        return self._window.ratio

    @property
    def ratio(self) -> float:
        """Share of bad rows in the window."""
        return self._window.bad_rows / max(1, self._window.rows)

    def seen(self, *, rows: int, bad_rows: int) -> None:
        """Moves the budget's window on by `rows` rows, `bad_rows` of them bad."""
        self._window = self._window.after(rows=rows, bad_rows=bad_rows)

    def keep(self, letters: Sequence[DeadLetter], num_rows: Sequence[int] | None = None) -> None:
        """Counts and keeps bad rows; `num_rows` says how many each letter stands for if not one. Raises SourceError."""
        if not letters:
            return
        for letter, number in zip(letters, num_rows or [1] * len(letters), strict=True):
            self.counts[letter.reason] += number
        self._newest = f"{place(letters[-1])}: {letters[-1].detail}"
        if self._letters is None:
            return
        try:
            self._letters.write(letters)
        except OSError as error:
            hint = f"hint: make room for dead letters, or leave {self._source}.deadLetter out"
            raise SourceError(f"bad records cannot be kept: {error.strerror}; {hint}") from error

    def check(self, *, at_end: bool = False) -> None:
        """Raises DataBudgetExceeded. `at_end`: no row will come any more."""
        if self._window.exceeded or (at_end and self._window.exceeded_at_end):
            counts = ", ".join(f"{reason}: {count}" for reason, count in sorted(self.counts.items()))
            hint = f"hint: see the dead letters, mend the producer, or raise {self._source}.errorBudget"
            newest = f"; the newest: {self._newest}" if self._newest else ""
            raise DataBudgetExceeded(f"{self._window} ({counts}{newest}); {hint}")

    def flush(self) -> None:
        """Returns when all letters are durable. Raises SourceError."""
        if self._letters is not None:
            self._letters.flush()

    def close(self) -> None:
        """Flushes and releases."""
        if self._letters is not None:
            self._letters.close()


def letters_in(directory: Path, *, source: str) -> FileDeadLetters:
    """Dead letters as files of a directory. Raises SourceError where it cannot be written."""
    try:
        return FileDeadLetters(directory)
    except OSError as error:
        hint = f"hint: correct {source}.deadLetter.path, or leave it out"
        raise SourceError(f"{directory}: {error.strerror}; {hint}") from error
