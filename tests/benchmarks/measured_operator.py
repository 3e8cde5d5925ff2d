"""`rap-operator` with its passes measured: `python -m benchmarks.measured_operator FILE OPTIONS...`.

On SIGUSR1 it writes to FILE how long passes took, in all and without the waiting for the API server's answers: the
second is the operator's own, the first is also what the machine makes of the server. For benchmarks only.
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

from rap_operator import cli
from rap_operator.api import KubernetesApi
from rap_operator.controller import Controller

_waited = threading.local()
_passes: list[tuple[float, float]] = []
"""Seconds of each pass, and of these the seconds it waited for the server."""
_request, _work_once = KubernetesApi._request, Controller.work_once


def _timed_request(self: KubernetesApi, *arguments: Any, **options: Any) -> Any:
    begun_s = time.monotonic()
    try:
        return _request(self, *arguments, **options)
    finally:
        _waited.seconds = getattr(_waited, "seconds", 0.0) + time.monotonic() - begun_s


def _timed_work(self: Controller, timeout_s: float | None = None) -> bool:
    if not getattr(self, "is_measured", False):
        self.is_measured = True  # type: ignore[attr-defined]  # a mark of this program's own
        passed = self.observe_pass

        def both(outcome: str, seconds: float) -> None:
            passed(outcome, seconds)
            _passes.append((seconds, getattr(_waited, "seconds", 0.0)))

        self.observe_pass = both
    _waited.seconds = 0.0
    return _work_once(self, timeout_s)


def _report(file: Path) -> None:
    passes = list(_passes)
    del _passes[: len(passes)]  # each report is of the time since the one before
    whole, own = sorted(s for s, _ in passes), sorted(s - waited for s, waited in passes)
    written = {
        "passes": float(len(passes)),
        "reconcile_p50_s": _quantile(whole, 0.5),
        "reconcile_p99_s": _quantile(whole, 0.99),
        "reconcile_own_p99_s": _quantile(own, 0.99),
        "waiting_share": sum(waited for _, waited in passes) / max(sum(whole), 1e-9),
    }
    aside = file.with_suffix(".partial")
    aside.write_text(json.dumps(written))
    aside.rename(file)


def _quantile(values: list[float], share: float) -> float:
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=_report, args=(Path(sys.argv[1]),)).start())
    KubernetesApi._request = _timed_request  # type: ignore[method-assign]  # measured, otherwise as it is
    Controller.work_once = _timed_work  # type: ignore[method-assign]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(cli.main(sys.argv[2:]))
