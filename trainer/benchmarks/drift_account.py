"""What a drift came to: throughput as it ran, under the best schedule of each moment, and under the first one all the time. Pure.

For `drift_bench.py`. Times are seconds; a table gives the seconds of a step by schedule, list length and neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Table = Mapping[tuple[str, float, bool], float]


@dataclass
class Chunk:
    """Some steps."""

    length: float
    beside: bool
    steps: int
    seconds: float
    plan: str
    """Hash of the one in force."""
    held_up: bool
    """Another plan was captured meanwhile."""


def steps_made(chunks: Sequence[Chunk]) -> Iterator[dict[str, Any]]:
    """By list length and neighbour."""
    for length, beside in sorted({(chunk.length, chunk.beside) for chunk in chunks}):
        mine = [chunk for chunk in chunks if (chunk.length, chunk.beside) == (length, beside)]
        ran_s, steps = sum(chunk.seconds for chunk in mine), sum(chunk.steps for chunk in mine)
        yield {"length": length, "beside": beside, "steps": steps, "step_ms": round(1e3 * ran_s / steps, 4)}


def seconds_of(chunk: Chunk, steps_s: Table, scale: float) -> float:
    """In compressed time: what a capture beside a chunk cost counts for itself."""
    undisturbed = chunk.steps * steps_s[f"plan {chunk.plan}", chunk.length, chunk.beside]
    if not chunk.held_up or chunk.seconds < undisturbed:
        return chunk.seconds
    return undisturbed + (chunk.seconds - undisturbed) / scale


def by_table(chunk: Chunk, steps_s: Table, scale: float) -> float:
    """The same with the table's step in place of the one that was timed: as oracle and never are counted."""
    undisturbed = chunk.steps * steps_s[f"plan {chunk.plan}", chunk.length, chunk.beside]
    held_up_s = max(chunk.seconds - undisturbed, 0.0) if chunk.held_up else 0.0
    return undisturbed + held_up_s / scale


def summary(chunks: Sequence[Chunk], steps_s: Table, first: str, *, scale: float, stood_s: float) -> dict[str, float]:
    """Throughputs in steps a second of compressed time. `first`: the schedule it began with; `stood_s`: training stood still.

    `as_timed` is ours with the steps as they were timed in the drift, minutes before the table's.
    """
    total = sum(chunk.steps for chunk in chunks)
    ours = sum(by_table(chunk, steps_s, scale) for chunk in chunks) + stood_s / scale
    timed = sum(seconds_of(chunk, steps_s, scale) for chunk in chunks) + stood_s / scale
    names = {name for name, _, _ in steps_s}

    def under(best: bool) -> float:
        return sum(
            chunk.steps * min(steps_s[name, chunk.length, chunk.beside] for name in (names if best else {first}))
            for chunk in chunks
        )

    rates = {
        "ours": total / ours,
        "as_timed": total / timed,
        "oracle": total / under(True),
        "never": total / under(False),
    }
    return rates | {"of_oracle": rates["ours"] / rates["oracle"], "of_never": rates["ours"] / rates["never"]}
