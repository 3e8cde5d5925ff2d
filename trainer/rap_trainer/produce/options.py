"""What to produce: one frozen value, independent of where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["parquet", "arrow", "csv", "tsv"]

NUM_INTS = 13
NUM_CATS = 26


@dataclass(frozen=True, kw_only=True)
class Produce:
    """Columns are Criteo's: `label`, `int_0..12`, `cat_0..25`, and the event time `ts` (float64 epoch seconds).

    Raises ValueError for values out of range or combinations that cannot be written.
    """

    rows: int | None = None
    """How many; None: without end, or one pass of a replayed file."""
    rate: float | None = None
    """Rows a second; None: as fast as they can be written."""
    seed: int = 0
    """Equal options give equal rows, event times apart."""
    drift: float = 0.0
    """Turns of the truth by 90 degrees in a million rows: at 1.0, what was learned is worth nothing after a million."""
    mean_length: float | None = None
    """Mean length of the categories' lists (log-normal, at most 100); None: one id a row, no lists."""
    length_drift: float = 0.0
    """Mean list lengths grow by the factor exp(length_drift) in a million rows."""
    bad_ratio: float = 0.0
    """Share of bad records, of every kind the format can hold."""
    hex_categories: bool = False
    """Categories as 8 hexadecimal digits, as Criteo publishes them."""
    row_numbers: bool = False
    """Add the column `row` (int64), so that a test can name each row."""
    start_time_s: float | None = None
    """Event time of the first row; None: now."""
    replay: Path | None = None
    """A Criteo file (Parquet with our columns, or its text form) instead of synthetic rows; repeated up to `rows`."""

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 0:
            raise ValueError(f"rows must not be negative, got {self.rows}")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate must be above 0 rows/s, got {self.rate}")
        if not 0 <= self.bad_ratio <= 1:
            raise ValueError(f"bad ratio must be within 0..1, got {self.bad_ratio}")
        if self.mean_length is not None and not 1 <= self.mean_length <= MAX_LENGTH:
            raise ValueError(f"mean length must be within 1..{MAX_LENGTH}, got {self.mean_length}")
        if self.mean_length is not None and (self.hex_categories or self.replay is not None):
            raise ValueError("lists of categories are neither hexadecimal nor replayed: leave out mean length")


MAX_LENGTH = 100
"""Longest list (SEMANTICS: plan 4)."""
