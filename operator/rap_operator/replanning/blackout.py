"""Blackout windows: `cron-expression/minutes` in UTC. The cron fields are cronsim's business."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cronsim import CronSim, CronSimError


class BadBlackout(ValueError):
    """An expression that no cron understands."""


def problems(windows: list[str]) -> list[str]:
    """What is wrong with windows, one sentence each."""
    found = []
    for window in windows:
        try:
            _covers(window, 0)
        except BadBlackout as error:
            found.append(str(error))
    return found


def active(windows: list[str], now_s: float) -> str | None:
    """The window that covers a time (seconds since the epoch); None outside all. Raises BadBlackout."""
    minute = int(now_s // 60)
    return next((window for window in windows if _covers(window, minute)), None)


@lru_cache(maxsize=4096)
def _covers(window: str, minute: int) -> bool:
    """Whether one of its starts lies at most its length before a minute since the epoch."""
    expression, _, length = window.rpartition("/")
    now = datetime.fromtimestamp(minute * 60, UTC)
    begin = now - timedelta(minutes=int(length))  # a start right there is over by now: ticks come after it
    try:
        start = next(CronSim(expression.strip(), begin))
    except CronSimError as error:
        raise BadBlackout(f"blackout {window!r}: {error}") from None
    except StopIteration:
        return False
    return bool(start <= now)
