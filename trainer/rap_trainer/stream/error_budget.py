"""How many bad rows are too many: a pure count over a sliding window of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

NUM_SEGMENTS = 100  # the window slides in steps of 1 % of its length


@dataclass(frozen=True, kw_only=True)
class ErrorBudgetWindow:
    """Rows and bad rows of the last `window_rows` rows, oldest segment first. A value: `after` gives the next."""

    ratio: float
    """Largest share of bad rows in a window."""
    window_rows: int
    segments: tuple[tuple[int, int], ...] = ()
    """(rows, bad rows) each."""
    rows: int = 0
    """Of all segments."""
    bad_rows: int = 0
    """Of all segments."""

    @property
    def exceeded(self) -> bool:
        """The window, even if only good rows complete it, has more bad rows than allowed."""
        return self.bad_rows > self.ratio * self.window_rows

    @property
    def exceeded_at_end(self) -> bool:
        """The same when nothing comes any more: the rows seen are the window."""
        return self.exceeded or self.bad_rows > self.ratio * min(self.rows, self.window_rows)

    def after(self, *, rows: int, bad_rows: int) -> ErrorBudgetWindow:
        """The window after `rows` more rows, `bad_rows` of them bad."""
        if rows == 0:
            return self
        segment_rows = max(1, self.window_rows // NUM_SEGMENTS)
        segments = list(self.segments)
        if segments and segments[-1][0] + rows <= segment_rows:
            last_rows, last_bad = segments[-1]
            segments[-1] = (last_rows + rows, last_bad + bad_rows)
        else:
            segments.append((rows, bad_rows))
        total, bad = self.rows + rows, self.bad_rows + bad_rows
        while len(segments) > 1 and total - segments[0][0] >= self.window_rows:
            old_rows, old_bad = segments.pop(0)
            total, bad = total - old_rows, bad - old_bad
        return replace(self, segments=tuple(segments), rows=total, bad_rows=bad)

    def __str__(self) -> str:
        return (
            f"{self.bad_rows} of the last {self.rows} rows are bad; allowed are {self.ratio:.4g} of {self.window_rows}"
        )
