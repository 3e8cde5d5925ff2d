"""The plan a rank has found in its file: prepared, or refused with the reason. A value, and how ranks name it to each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rap_contract.plan import Plan

NAME_BITS = 60
"""Of a plan's hash: what fits a signed 64-bit number of the ranks' exchange, with room."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What the plan file holds."""

    number: int
    """Its name in the ranks' messages; never 0."""
    hash: str
    """Of the plan; of the text where that is no plan."""
    plan: Plan | None = None
    """None: it cannot run on this rank."""
    reason: str = ""
    """Why not."""
    seen_s: float = 0.0
    """When the file was seen, monotonic."""


def number_of(plan_hash: str) -> int:
    """A plan's name in the ranks' messages."""
    return int(plan_hash[: NAME_BITS // 4], 16) or 1


def text_hash(text: str) -> str:
    """Stands for the hash of a text that is no plan."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
