"""What all ranks agree on before each step: one small exchange, then the same pure decision everywhere.

A rank never acts on its own clock, signal or failure; it says so in its message, and all act at the same boundary.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol, Self, cast

from rap_contract import metrics

from rap_trainer.step.gathering import gathering
from rap_trainer.world import World

MAX_NAMED = 4  # ranks of a reason


class Shares(Protocol):
    """Source.shares."""

    def __call__(self, ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None: ...


class Message(NamedTuple):
    """What a rank says before a step."""

    rows: int
    ended: bool
    stop: bool = False
    """It was asked to stop."""
    failure: int = 0
    """Exit code of what went wrong on it; 0: nothing."""
    flush: bool = False
    """The first rank's clock: do not wait longer for a full step."""
    checkpoint: bool = False
    """The first rank's clock: a checkpoint is due."""
    report: bool = False
    """The first rank's clock: a report is due."""
    ready_plan: int = 0
    """The plan it could run next, by its number (`replan/candidate.py`); 0: none."""
    refused_plan: int = 0
    """The plan it cannot run; 0: none."""
    measure: bool = False
    """The first rank: the windows of the step should be measured again."""
    seen_rows: int = 0
    bad_rows: int = 0
    """Totals of the rank's source, for a budget over all ranks."""

    def packed(self) -> bytes:
        """As it travels."""
        return _PACKING.pack(*self)


_PACKING = struct.Struct("=i??h???qq?qq")
"""Message's fields in order; with what `host_exchange.py` adds they fill one line of a cache."""
_PARTS = "i24sqq"
"""The same: the fields from `ended` to `measure`, which before most steps say nothing on any rank, are one."""
_AT_REST = bytes(24)


@cache
def _parts(ranks: int) -> struct.Struct:
    """Messages of so many ranks, one after the other."""
    return struct.Struct("=" + _PARTS * ranks)


assert _parts(1).size == _PACKING.size


class Messages:
    """Those of all ranks. They are read before every step, with cold caches: only what says something is looked at."""

    def __init__(self, packed: bytes) -> None:
        """Those that were packed, one after the other."""
        self._packed = packed
        self._parts = _parts(len(packed) // _PACKING.size).unpack(packed)
        self.rows: tuple[int, ...] = self._parts[0::4]
        """That each rank offers."""
        self.at_rest = self._parts[1::4].count(_AT_REST) == len(self.rows)
        """No rank says more than what it offers."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Self:
        """Of each rank, in order."""
        return cls(b"".join(message.packed() for message in messages))

    def totals(self) -> tuple[int, int]:
        """Rows that all ranks have seen so far, and the bad ones among them."""
        return sum(self._parts[2::4]), sum(self._parts[3::4])

    @cached_property
    def every(self) -> Any:
        """For each field of Message its values on all ranks."""
        return Message._make(cast("Any", zip(*_PACKING.iter_unpack(self._packed), strict=True)))


class Decision(NamedTuple):
    """What every rank does next; equal on all of them."""

    shares: tuple[int, ...] | None = None
    """Rows of each rank in the step to prepare; None: prepare none."""
    failure: int = 0
    """End with this exit code."""
    stop: bool = False
    """End with a checkpoint, as asked."""
    ended: bool = False
    """The source has ended and every row is taken."""
    checkpoint: bool = False
    report: bool = False
    switch_plan: int = 0
    """Take this plan after the step in hand: every rank could. 0: keep what runs."""
    drop_plan: int = 0
    """Forget this plan: some rank cannot run it."""
    measure: bool = False
    """Measure the windows of the step again after the step in hand."""

    @property
    def last(self) -> bool:
        """Whether no step is prepared any more."""
        return self.stop or self.ended or self.failure != 0


def decide(messages: Messages, *, room: bool, shares: Shares) -> Decision:
    """The decision that follows from all ranks' messages, in rank order.

    `room`: whether another step may be prepared at all (spec.trainer.maxSteps). `shares` is the source's rule.
    """
    if messages.at_rest:
        return Decision(shares(messages.rows, flush=False) if room else None, ended=not room)
    every = messages.every
    if any(every.failure):
        return Decision(failure=min(filter(None, every.failure)))
    if any(every.stop):
        return Decision(stop=True)
    all_ended = all(every.ended)
    taken = shares(messages.rows, flush=all_ended or every.flush[0]) if room else None
    return Decision(
        shares=taken,
        ended=taken is None and (all_ended or not room),
        checkpoint=every.checkpoint[0],
        report=every.report[0],
        switch_plan=every.ready_plan[0] if len(set(every.ready_plan)) == 1 else 0,
        drop_plan=next(filter(None, every.refused_plan), 0),
        measure=every.measure[0],
    )


class Exchange:
    """Gives every rank all ranks' messages."""

    def __init__(self, world: World) -> None:
        """Collective. Raises PeerLost."""
        self._gather = gathering(world, _PACKING.size) if world.size > 1 else None

    def __call__(self, message: Message) -> Messages:
        """Collective. Raises PeerLost."""
        if self._gather is None:
            return Messages(message.packed())
        return Messages(self._gather(message.packed()))


def starved(ready: Sequence[int], *, batch_rows: int, seconds: float) -> str:
    """Why there was no step for so long, by the rows that are ready on each rank."""
    lacking = [f"rank {rank} has {rows}" for rank, rows in enumerate(ready) if rows < batch_rows]
    more = f" and {len(lacking) - MAX_NAMED} more" if len(lacking) > MAX_NAMED else ""
    hint = (
        f"hint: nothing new in the source, or it does not answer; see {metrics.SOURCE_IDLE_SECONDS.name} of these ranks"
    )
    return (
        f"no step for {seconds:.0f} s: of the {batch_rows} rows that each rank needs, "
        f"{', '.join(lacking[:MAX_NAMED])}{more}; {hint}"
    )
