"""`rap-operator` with its passes measured: `python -m benchmarks.measured_operator FILE OPTIONS...`.

On SIGUSR1 it writes to FILE how long passes took, in all and without the waiting for the API server's answers: the
second is the operator's own, the first is also what the machine makes of the server; and when after the process's start
what was reached. For benchmarks only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rap_operator import cli
from rap_operator.api import KubernetesApi
from rap_operator.cache import Cache, Key
from rap_operator.controller import Controller
from rap_operator.resources import WATCHED, Resource

_STARTED_S = psutil.Process().create_time()
_reached: dict[str, float] = {}
"""What was reached, in seconds after the process's start, and the CPU seconds it had used by then."""
_waited = threading.local()
_passes: list[tuple[float, float]] = []
"""Seconds of each pass, and of these the seconds it waited for the server."""
_ended: dict[Key, float] = {}
"""When each job's first pass was over, in seconds after the process's start."""
_request, _work_on, _replace = KubernetesApi._request, Controller._work_on, Cache.replace
_listed: set[str] = set()


def _reach(what: str) -> None:
    if f"{what}_s" not in _reached:
        _reached[f"{what}_s"] = time.time() - _STARTED_S
        _reached[f"{what}_cpu_s"] = time.process_time()


def _timed_replace(self: Cache, resource: Resource, *arguments: Any, **options: Any) -> None:
    _replace(self, resource, *arguments, **options)
    _listed.add(resource.kind)
    if len(_listed) == len(WATCHED):
        _reach("lists_in")


def _timed_request(self: KubernetesApi, *arguments: Any, **options: Any) -> Any:
    begun_s = time.monotonic()
    try:
        return _request(self, *arguments, **options)
    finally:
        _waited.seconds = getattr(_waited, "seconds", 0.0) + time.monotonic() - begun_s


def _timed_work(self: Controller, key: Key) -> None:
    _waited.seconds, begun_s = 0.0, time.monotonic()
    _work_on(self, key)
    _reach("first_reconcile")
    _ended.setdefault(key, time.time() - _STARTED_S)
    _passes.append((time.monotonic() - begun_s, _waited.seconds))


def _report(file: Path) -> None:
    passes = list(_passes)
    del _passes[: len(passes)]  # each report is of the time since the one before
    whole, own = sorted(s for s, _ in passes), sorted(s - waited for s, waited in passes)
    written = {
        "passes": {
            "passes": float(len(passes)),
            "reconcile_p50_s": _quantile(whole, 0.5),
            "reconcile_p99_s": _quantile(whole, 0.99),
            "reconcile_own_p99_s": _quantile(own, 0.99),
            "waiting_share": sum(waited for _, waited in passes) / max(sum(whole), 1e-9),
        },
        "threads": _threads(),
        "start": {**_reached, "all_reconciled_s": max(_ended.values(), default=0.0), "jobs": float(len(_ended))},
    }
    aside = file.with_suffix(".partial")
    aside.write_text(json.dumps(written))
    aside.rename(file)


def _threads() -> dict[str, float]:
    """CPU seconds by what threads are for; of those that have ended nothing is known."""
    ticks: int = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        with suppress(FileNotFoundError):
            numbers = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            name = re.sub(r"[-_]?[0-9]+.*", "", thread.name)
            found[name] = found.get(name, 0.0) + (int(numbers[11]) + int(numbers[12])) / ticks
    return found


def _quantile(values: list[float], share: float) -> float:
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=_report, args=(Path(sys.argv[1]),)).start())
    KubernetesApi._request = _timed_request  # type: ignore[method-assign]  # measured, otherwise as it is
    Controller._work_on = _timed_work  # type: ignore[method-assign]
    Cache.replace = _timed_replace  # type: ignore[method-assign]
    _reach("imported")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(cli.main(sys.argv[2:]))
