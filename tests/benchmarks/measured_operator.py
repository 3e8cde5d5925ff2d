"""`rap-operator` with its passes measured: `python -m benchmarks.measured_operator FILE OPTIONS...`.

On SIGUSR1 it writes to FILE how long passes took, in all and without the waiting for the API server's answers: the
second is the operator's own, the first is also what the machine makes of the server; and when after the process's start
what was reached. For benchmarks only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rap_operator import cli
from rap_operator.api import KubernetesApi
from rap_operator.cache import Key
from rap_operator.controller import Controller

_STARTED_S = psutil.Process().create_time()
_IMPORTED_S = time.time() - _STARTED_S
_waited = threading.local()
_passes: list[tuple[float, float]] = []
"""Seconds of each pass, and of these the seconds it waited for the server."""
_begun: dict[Key, float] = {}
_ended: dict[Key, float] = {}
"""When each job's first pass was begun and over, in seconds after the process's start."""
_request, _work_on = KubernetesApi._request, Controller._work_on


def _timed_request(self: KubernetesApi, *arguments: Any, **options: Any) -> Any:
    begun_s = time.monotonic()
    try:
        return _request(self, *arguments, **options)
    finally:
        _waited.seconds = getattr(_waited, "seconds", 0.0) + time.monotonic() - begun_s


def _timed_work(self: Controller, key: Key) -> None:
    _waited.seconds, begun_s = 0.0, time.monotonic()
    _begun.setdefault(key, time.time() - _STARTED_S)
    _work_on(self, key)
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
        "start": {
            "imported_s": _IMPORTED_S,
            "lists_in_s": min(_begun.values(), default=0.0),
            "first_reconcile_s": min(_ended.values(), default=0.0),
            "all_reconciled_s": max(_ended.values(), default=0.0),
            "jobs": float(len(_ended)),
        },
    }
    aside = file.with_suffix(".partial")
    aside.write_text(json.dumps(written))
    aside.rename(file)


def _quantile(values: list[float], share: float) -> float:
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=_report, args=(Path(sys.argv[1]),)).start())
    KubernetesApi._request = _timed_request  # type: ignore[method-assign]  # measured, otherwise as it is
    Controller._work_on = _timed_work  # type: ignore[method-assign]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(cli.main(sys.argv[2:]))
