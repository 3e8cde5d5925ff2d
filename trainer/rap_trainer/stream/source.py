"""What the training loop asks of a source, whatever it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:  # reader processes come here too, and do without torch
    from rap_trainer.batch import Positions, RawBatch


class Offer(NamedTuple):
    """What one rank could train next; ranks exchange offers before each step."""

    rows: int
    """Rows this rank can deliver at once, at most what a full step takes."""
    ended: bool = False
    """Nothing will come after these rows."""
    seen_rows: int = 0
    """Rows this rank has consumed so far, the bad ones included; 0 from a source that hears of nobody."""
    bad_rows: int = 0
    """Bad ones among them."""


class Source(Protocol):
    """A stream of rows shared by the ranks of a job. Not thread-safe; prefetches by itself."""

    def offer(self) -> Offer:
        """What this rank has ready now; never blocks."""

    def shares(self, ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None:
        """Rows per rank of the next step, of those that each offers, or None to wait. Pure: equal on all ranks.

        Without `flush` only a full step is taken; with it whatever all ranks have.
        """

    def take(self, shares: Sequence[int]) -> RawBatch:
        """This rank's share of the next step. Raises DataBudgetExceeded, SourceError."""

    def positions(self) -> Positions:
        """Where this rank's part of the stream stands after all rows taken so far."""

    def settle(self) -> None:
        """Keeps the bad rows among those for good: a checkpoint follows, after which they are not seen again. Raises SourceError."""

    def close(self) -> None:
        """Stops readers; idempotent."""


@runtime_checkable
class Hearing(Protocol):
    """A source that judges what all ranks saw, such as an error budget of the job."""

    def hear(self, seen_rows: int, bad_rows: int) -> None:
        """The offers' totals over all ranks, the same on each, once before each step. Raises DataBudgetExceeded."""


@runtime_checkable
class Monitored(Protocol):
    """A source that tells the outside how far the saved model is, as Kafka's committed offsets do."""

    def saved(self, positions: Positions) -> None:
        """A checkpoint with this rank's `positions` is complete. Called from the training thread; must not block."""


@dataclass(frozen=True, kw_only=True)
class Lag:
    """What waits in the stream for this rank."""

    records: int
    """Produced and not yet taken."""
    seconds: float | None = None
    """Age of the oldest of them; None if it is not known."""


def catch_up_s(records: int, *, growth: float) -> float:
    """Seconds until the lag is gone if it grows by so many records a second; infinite unless it falls."""
    if records == 0:
        return 0.0
    return records / -growth if growth < 0 else inf


@runtime_checkable
class Lagging(Protocol):
    """A source that knows how far it is behind."""

    def lag(self) -> Lag:
        """Now; never blocks."""


class SourceError(RuntimeError):
    """The source cannot go on; the message names the place and what to do."""


class DataBudgetExceeded(SourceError):
    """More bad records than the job's error budget allows (exit code 3)."""


class SchemaMismatch(SourceError):
    """A file or message lacks a declared column, or has it with a type that cannot be read as declared."""
