"""The bounded history of decisions in status: each with its reason and numbers, repetitions counted instead of listed. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rap_contract.status import ReplanRecord, time_s, time_text

# A repetition is written down so often: each note is a write to the API server, 17 a minute of 1,000 jobs.
NOTED_EVERY_S = 3600.0


def record(
    outcome: str,
    reason: str,
    message: str,
    *,
    now_s: float,
    plans: tuple[str, str] = ("", ""),
    numbers: Mapping[str, float | None] | None = None,
) -> ReplanRecord:
    """A decision made now. `plans`: the one in force, and the one decided on."""
    known = {name: value for name, value in (numbers or {}).items() if value is not None and math.isfinite(value)}
    moment = time_text(now_s)
    return ReplanRecord(
        time=moment,
        first=moment,
        outcome=outcome,
        reason=reason,
        message=message[:4096],
        before=plans[0],
        plan=plans[1],
        numbers={name: float(f"{value:.6g}") for name, value in known.items()},
    )


def noted(history: list[ReplanRecord], new: ReplanRecord | None, *, limit: int) -> list[ReplanRecord]:
    """The history with a decision; the same list if that is a repetition which was noted lately."""
    if new is None:
        return history if len(history) <= limit else history[:limit]
    if not history or not _is_same(history[0], new):
        return [new, *history][:limit]
    last = history[0]
    since_s = time_s(new.time) - time_s(last.time)
    if 0 <= since_s < NOTED_EVERY_S:
        return history if len(history) <= limit else history[:limit]
    repeated = new.model_copy(update={"first": last.first, "count": last.count + 1})
    return [repeated, *history[1:]][:limit]


def _is_same(old: ReplanRecord, new: ReplanRecord) -> bool:
    return (old.outcome, old.reason, old.plan, old.before) == (new.outcome, new.reason, new.plan, new.before)
