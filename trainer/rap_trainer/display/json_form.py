"""Runs, progress, events and outcomes as JSON lines and back: `{"type": "progress", ...}`.

A number that is not finite becomes null, since JSON has no word for it. Unknown keys are ignored on reading, so that an
older version reads a newer file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from rap_trainer.display.progress import Event, Outcome, Progress, Run

Shown = Run | Progress | Event | Outcome
_TYPES: dict[str, type[Shown]] = {"run": Run, "progress": Progress, "event": Event, "outcome": Outcome}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def encode(value: Shown) -> str:
    """One line without its end."""
    return json.dumps({"type": _NAMES[type(value)], **_clean(asdict(value))}, allow_nan=False)


def decode(line: str) -> Shown | None:
    """The value of a line; None for a damaged line or one of another kind."""
    try:
        data = json.loads(line)
        return _build(_TYPES[data.pop("type")], data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _build(kind: type[Shown], data: Mapping[str, Any]) -> Shown:
    values = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    if values.get("last") is not None:
        values["last"] = _build(Progress, values["last"])
    return kind(**values)


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return value
