"""What a run measured of its step, from the history it keeps beside its checkpoints."""

from __future__ import annotations

import json
import statistics

from rap_contract.problem import InvalidDocument, Problem

LATEST = 30
"""Reports at the end of a history whose median counts: past the start and the last change."""


def measured_parts(text: str) -> dict[str, float]:
    """Seconds of a step by part, medians of the latest reports. Raises InvalidDocument for what is no history."""
    hint = "give the history.jsonl that `rap run` writes into its checkpoint directory"
    found: list[dict[str, float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            report = json.loads(line)
        except ValueError:
            raise InvalidDocument([Problem(path=(), message="not a line of JSON", hint=hint, line=number)]) from None
        parts = _parts(report)
        if parts:
            found.append(parts)
    if not found:
        raise InvalidDocument([Problem(path=(), message="no report with parts of a step", hint=hint)])
    latest = found[-LATEST:]
    names = dict.fromkeys(name for parts in latest for name in parts)
    return {name: statistics.median(parts.get(name, 0.0) for parts in latest) / 1e3 for name in names}


def _parts(report: object) -> dict[str, float]:
    """Milliseconds by part of a report, wherever in it they are."""
    if not isinstance(report, dict):
        return {}
    for key in ("parts_ms", "partsMs"):
        parts = report.get(key)
        if isinstance(parts, dict):
            return {name: float(value) for name, value in parts.items() if isinstance(value, int | float)}
    return next((parts for value in report.values() for parts in (_parts(value),) if parts), {})
