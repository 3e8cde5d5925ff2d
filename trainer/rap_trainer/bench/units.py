"""Units of a bench: which case of which plan and batch size is next, and what remains when the ranks died. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True)
class Unit:
    """One case of one plan and batch size, on the ranks it is given to."""

    plan: int
    batch: int
    case: str

    def answered_by(self, line: Mapping[str, Any]) -> bool:
        """Whether a result line belongs to this unit; schedules of one captured runtime print a line each."""
        same = line.get("plan") == self.plan and line.get("batch") == self.batch
        return same and line.get("unit") == self.case


def units_of(plans: Sequence[int], batches: Sequence[int], cases: Sequence[str]) -> tuple[Unit, ...]:
    """All units; cases of one plan and batch size follow each other, for they share its batches."""
    return tuple(Unit(plan, batch, case) for plan in plans for batch in batches for case in cases)


def to_argument(units: Sequence[Unit]) -> str:
    """Units as a word of a command line."""
    return json.dumps([astuple(unit) for unit in units], separators=(",", ":"))


def from_argument(text: str) -> tuple[Unit, ...]:
    """The reverse of `to_argument`."""
    return tuple(Unit(*fields) for fields in json.loads(text))


def remaining(units: Sequence[Unit], ended: Iterable[Unit]) -> tuple[Unit, ...]:
    """Units nobody has ended yet, in order."""
    done = set(ended)
    return tuple(unit for unit in units if unit not in done)
