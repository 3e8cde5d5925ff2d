"""Memory of `rap run` over time: a producer, two ranks, resident bytes once a second. Prints JSON lines.

`python trainer/benchmarks/memory_bench.py [--seconds 600]`

The figure is the slope of the ranks' summed resident memory after warm-up, as a share of its level per 10 minutes, beside
the spread of the samples: a leak shows as a slope larger than the spread. Ranks that fall behind hold more (what is read
ahead is full), so a rate is either below what the machine trains all along, or above (`--rate 20000`): the lag tells.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rap_trainer.demo import document
from resident_memory import FIFTHS, Resident, by_fifth, resident_below  # type: ignore[import-not-found]  # beside this file

COMMAND = [sys.executable, "-m", "rap_trainer.cli"]
WARM_UP_SHARE = 0.25  # of the run: pools, caches and the first checkpoints fill in it


def main() -> None:
    """One run, one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=int, default=3000, help="rows a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples, lags = _measure(Path(folder), options.seconds, options.rate)
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    times_s, sizes_bytes = [t for t, _ in warm], [size.all for _, size in warm]
    slope, _ = statistics.linear_regression(times_s, sizes_bytes)
    level = statistics.fmean(sizes_bytes)
    result = {
        "bench": "memory",
        "seconds": options.seconds,
        "rate_rows_per_s": options.rate,
        "lag_records_by_fifth": [lags[len(lags) * fifth // FIFTHS] for fifth in range(FIFTHS)] if lags else [],
        "samples": len(warm),
        "level_mib": round(level / 2**20, 1),
        "first_mib": round(sizes_bytes[0] / 2**20, 1),
        "last_mib": round(sizes_bytes[-1] / 2**20, 1),
        "mib_by_fifth": by_fifth(sizes_bytes),
        "anonymous_mib_by_fifth": by_fifth([size.anonymous for _, size in warm]),
        "growth_per_10_min_ratio": round(slope * 600 / level, 5),
        "spread_ratio": round(statistics.stdev(sizes_bytes) / level, 5),
    }
    print(json.dumps(result), flush=True)


def _measure(folder: Path, seconds: float, rate: int) -> tuple[list[tuple[float, Resident]], list[int]]:
    """(seconds, resident memory) once a second from the first checkpoint on, and the records behind of each report."""
    job = folder / "job.yaml"
    job.write_text(document(folder, int(rate * (seconds + 120))))
    rows = str(int(rate * (seconds + 120)))
    produce = [
        "produce",
        "--rows",
        rows,
        "--rate",
        str(rate),
        "--rows-per-file",
        "20000",
        "--out",
        str(folder / "events"),
    ]
    producer = subprocess.Popen([*COMMAND, *produce], stdout=subprocess.DEVNULL)
    progress = folder / "progress.jsonl"
    with progress.open("w") as out:
        trainer = subprocess.Popen([*COMMAND, "run", str(job), "--json"], stdout=out)
    samples: list[tuple[float, Resident]] = []
    try:
        while not any((folder / "checkpoints").glob("step-*")):
            if trainer.poll() is not None:
                raise SystemExit(f"the trainer ended with {trainer.returncode}")
            time.sleep(0.5)
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < seconds and trainer.poll() is None:
            samples.append((now_s, resident_below(trainer.pid)))
            time.sleep(1.0)
    finally:
        for process in (producer, trainer):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    reports = [json.loads(line) for line in progress.read_text().splitlines()]
    return samples, [report["lag_records"] for report in reports if report["type"] == "progress"]


if __name__ == "__main__":
    main()
