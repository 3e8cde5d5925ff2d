"""Numbers as a person reads them: short, with their unit, the same everywhere. A missing number is a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

MISSING = "–"  # noqa: RUF001  # a dash is meant
SPARKS = "▁▂▃▄▅▆▇█"
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def known(value: float | None) -> float | None:
    """The number, or None if it is none that could be shown or drawn."""
    return value if value is not None and math.isfinite(value) else None


def count(value: float | None) -> str:
    """Exact below ten thousand, then three digits: `9,999`, `41.2k`, `5.05M`."""
    if value is None or not math.isfinite(value):
        return MISSING
    if abs(value) < 9999.5:
        return f"{value:,.0f}"
    scale, letter = next((s, letter) for s, letter in _SCALES if abs(value) >= 0.9995 * s)
    scaled = value / scale
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f}{letter}"


def seconds(value: float | None) -> str:
    """`3 ms`, `1.2 s`, `42 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 0:
        return f"-{seconds(-value)}"
    if value == 0:
        return "0 s"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def milliseconds(value: float | None) -> str:
    """`0.42 ms`, `48.2 ms`, `1,204 ms`."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0 ms"
    return f"{value:.2f} ms" if value < 9.995 else f"{value:.1f} ms" if value < 99.95 else f"{value:,.0f} ms"


def ratio(value: float | None, digits: int = 4) -> str:
    """A plain number of fixed digits."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share of 1 as percent: `3.1 %`."""
    return MISSING if value is None or not math.isfinite(value) else f"{value * 100:.1f} %"


def clock(time_s: float) -> str:
    """Time of day in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")


def date_and_time(time_s: float) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def spark(values: Sequence[float]) -> str:
    """Finite numbers as a line of blocks, lowest to highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(SPARKS[min(int((value - low) / span * len(SPARKS)), len(SPARKS) - 1)] for value in values)
