"""Waiting for the world in tests: poll a condition until a deadline, never sleep a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, limit_s: float, what: str, every_s: float = 0.05) -> T:
    """Return the first truthy value of `condition`, or raise TimeoutError naming `what` and the last value."""
    deadline_s = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}; last seen: {value!r}")
        time.sleep(every_s)
