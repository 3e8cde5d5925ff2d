"""An account of which rows each step trained, so that a test can prove that every row counts exactly once.

One append-only file a rank; a line is written before its step's optimizer runs and survives kill -9. `replay` follows
the attempts and drops what a resume has undone. Costs one small write a step; off unless asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rap_trainer.batch import Position, Positions

ENV_LEDGER = "RAP_LEDGER"
"""Directory of the ledger; without it none is kept."""

Span = tuple[Position | None, Position]
"""From (None: the unit's beginning) and to the first row not trained."""


class Ledger:
    """The account of one rank and attempt."""

    def __init__(self, directory: Path, *, rank: int, attempt: int, resumed_step: int, start: Positions) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / f"rank-{rank:05d}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._positions = dict(start)
        self._write({"attempt": attempt, "resumed_step": resumed_step})

    def step(self, step: int, rows: int, positions: Positions) -> None:
        """Notes that `step` trains this rank's `rows` rows up to `positions`."""
        spans = {}
        for unit, to in positions.items():
            before = self._positions.get(unit)
            if before != to:
                spans[unit] = [None if before is None else [before.offset, before.row], [to.offset, to.row]]
        self._positions = dict(positions)
        self._write({"step": step, "rows": rows, "spans": spans})

    def roll_back(self, step: int) -> None:
        """Notes that the model is that of `step` again; the rows since are skipped and show as gaps."""
        self._write({"rolled_back_to": step})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: object) -> None:
        os.write(self._file, f"{json.dumps(line, separators=(',', ':'))}\n".encode())


@dataclass(frozen=True, kw_only=True)
class LedgerStep:
    """One step of one rank that is in the surviving model."""

    attempt: int
    rows: int
    spans: Mapping[str, Span]


def replay(directory: Path) -> dict[int, dict[int, LedgerStep]]:
    """By rank and step, what the final model has learned: later attempts replace the steps after their resume."""
    ranks: dict[int, dict[int, LedgerStep]] = {}
    for path in sorted(directory.glob("rank-*.jsonl")):
        steps: dict[int, LedgerStep] = {}
        attempt = 0
        for text in path.read_text().splitlines():
            line = json.loads(text)
            attempt = line.get("attempt", attempt)
            resumed_step = line.get("resumed_step", line.get("rolled_back_to"))
            if resumed_step is not None:
                steps = {number: step for number, step in steps.items() if number <= resumed_step}
                continue
            if line["step"] in steps:
                raise ValueError(f"{path}: attempt {attempt} trains step {line['step']} twice")
            spans = {unit: (_position(a), Position(*b)) for unit, (a, b) in line["spans"].items()}
            steps[line["step"]] = LedgerStep(attempt=attempt, rows=line["rows"], spans=spans)
        ranks[int(path.stem.removeprefix("rank-"))] = steps
    return ranks


def gaps(steps: Mapping[int, LedgerStep]) -> list[str]:
    """Where a rank's steps do not follow each other seamlessly, unit by unit; empty for exactly once."""
    found: list[str] = []
    ends: dict[str, Position] = {}
    for number, expected in zip(sorted(steps), range(1, len(steps) + 1), strict=True):
        if number != expected:
            found.append(f"step {expected} is missing before step {number}")
            break
        for unit, (begin, end) in steps[number].spans.items():
            if unit in ends and begin != ends[unit]:
                found.append(f"step {number}, {unit}: begins at {begin}, the step before ended at {ends[unit]}")
            ends[unit] = end
    return found


def _position(value: list[int] | None) -> Position | None:
    return None if value is None else Position(*value)
