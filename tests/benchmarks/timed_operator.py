"""`rap-operator` whose every pass is timed: `python -m benchmarks.timed_operator FILE OPTIONS...`. For `replan_scale.py`.

Each pass becomes a line of FILE: when it was over (seconds of the monotonic clock, which processes share), how long it took, and how much
CPU time its thread took for it. What `measured_operator` adds up, this leaves to the reader.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

from rap_operator import cli
from rap_operator.cache import Key
from rap_operator.controller import Controller

_work_on = Controller._work_on


def timed(file: TextIO) -> None:
    """Times all passes from now on."""

    def work_on(self: Controller, key: Key) -> None:
        begun_s, busy_s = time.monotonic(), time.thread_time()
        _work_on(self, key)
        ended_s = time.monotonic()
        file.write(f"{ended_s:.4f} {ended_s - begun_s:.6f} {time.thread_time() - busy_s:.6f}\n")

    Controller._work_on = work_on  # type: ignore[method-assign]  # measured, otherwise as it is


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", buffering=1) as passes:
        timed(passes)
        sys.exit(cli.main(sys.argv[2:]))
