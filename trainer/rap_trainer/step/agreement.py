"""What all ranks agree on before each step: one small exchange, then the same pure decision everywhere.

A rank never acts on its own clock, signal or failure; it says so in its message, and all act at the same boundary.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, get_type_hints

from rap_contract import metrics

from rap_trainer.step.gathering import gathering
from rap_trainer.stream.source import Offer
from rap_trainer.world import World

MAX_NAMED = 4  # ranks of a reason
Shares = Callable[[Sequence[Offer]], tuple[int, ...] | None]


class Message(NamedTuple):
    """What a rank says before a step. A tuple, since all ranks' messages are made before every step."""

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

    @property
    def offer(self) -> Offer:
        return Offer(self.rows, self.ended, self.seen_rows, self.bad_rows)

    def packed(self) -> bytes:
        """As it travels."""
        return _PACKING.pack(*self)

    @classmethod
    def read(cls, packed: bytes) -> Self:
        """What was packed."""
        return cls._make(_PACKING.unpack(packed))


_PACKING = struct.Struct("=" + "".join("?" if kind is bool else "q" for kind in get_type_hints(Message).values()))


@dataclass(frozen=True, kw_only=True)
class Decision:
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


def decide(messages: Sequence[Message], *, room: bool, full: Shares, partial: Shares) -> Decision:
    """The decision that follows from all ranks' messages, in rank order.

    `room`: whether another step may be prepared at all (spec.trainer.maxSteps). `full` and `partial` are the source's
    rules for a full step and for whatever is there.
    """
    first = messages[0]
    failures = [message.failure for message in messages if message.failure]
    if failures:
        return Decision(failure=min(failures))
    if any(message.stop for message in messages):
        return Decision(stop=True)
    offers = [message.offer for message in messages]
    all_ended = all(offer.ended for offer in offers)
    shares = None
    if room:
        shares = partial(offers) if all_ended or first.flush else full(offers)
    return Decision(
        shares=shares,
        ended=shares is None and (all_ended or not room),
        checkpoint=first.checkpoint,
        report=first.report,
        switch_plan=_common_plan(messages),
        drop_plan=next((message.refused_plan for message in messages if message.refused_plan), 0),
        measure=first.measure,
    )


def _common_plan(messages: Sequence[Message]) -> int:
    """The plan that every rank could run next; 0 if they name several, or one names none."""
    plans = {message.ready_plan for message in messages}
    return plans.pop() if len(plans) == 1 else 0


class Exchange:
    """Gives every rank all ranks' messages."""

    def __init__(self, world: World) -> None:
        """Collective. Raises PeerLost."""
        self._gather = gathering(world, _PACKING.size) if world.size > 1 else None

    def __call__(self, message: Message) -> list[Message]:
        """Collective. Raises PeerLost."""
        if self._gather is None:
            return [message]
        return [Message.read(packed) for packed in self._gather(message.packed())]


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
