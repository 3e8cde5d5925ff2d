"""Rows per second of one reader, of two, of more at once: how many cores a rate wants. Prints JSON lines; needs no broker.

`python trainer/benchmarks/kafka_scaling_bench.py [--readers 1 2 4 8] [--rows 2000000]`. Each reader is that of a rank of
its own, with Criteo's 40 columns, and has a stand-in for a broker of its own (`kafka_replay.py`); all read at the same
time. A reader, its stand-in and its rank take a core each, so 8 readers want 24 cores: with fewer, CPU seconds still say
what a core of reading is worth, and the wall rate says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WANTED_ROWS_PER_S = 6.4e6
"""What 2 GPUs take at 1.29 ms a step of 4,096 rows each; 1 GB/s at the lab's 156 bytes a row."""


def main() -> None:
    """Runs each number of readers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each reader")
    parser.add_argument("--rows-per-message", type=int, default=1000)
    parser.add_argument("--format", default="arrow")
    options = parser.parse_args()
    for count in options.readers:
        print(json.dumps(_together(count, options)), flush=True)


def _together(count: int, options: argparse.Namespace) -> dict[str, Any]:
    messages = options.rows // options.rows_per_message
    shape = ["--format", options.format, "--messages", str(messages)]
    stand_ins = [
        _start("kafka_replay.py", *shape, "--rows-per-message", str(options.rows_per_message)) for _ in range(count)
    ]
    try:
        places = [json.loads(each.stdout.readline()) for each in stand_ins if each.stdout is not None]
        sides = [
            _start("kafka_sides.py", "source", "--bootstrap", place["bootstrap"], "--topic", place["topic"], *shape,
                   "--rows", str(options.rows))
            for place in places
        ]  # fmt: skip
        runs = [json.loads(side.communicate()[0].splitlines()[-1]) for side in sides]
    finally:
        for each in stand_ins:
            each.communicate()
    rate = sum(options.rows / run["seconds"] for run in runs)
    core_rate = options.rows * count / sum(run["reader_cpu_s"] for run in runs)
    return {
        "bench": "kafka_scaling",
        "format": options.format,
        "readers": count,
        "cores": len(os.sched_getaffinity(0)),
        "bytes_per_row": round(places[0]["message_bytes"] / options.rows_per_message, 1),
        "rows_per_s": round(rate),
        "rows_per_s_of_each": [round(options.rows / run["seconds"]) for run in runs],
        "rows_per_reader_core_s": round(core_rate),
        "rank_cpu_s_per_million_rows": round(
            1e6 * sum(run["cpu_s"] - run["reader_cpu_s"] for run in runs) / (options.rows * count), 3
        ),
        "reader_cores_for_wanted_rate": round(WANTED_ROWS_PER_S / core_rate, 2),
    }


def _start(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / name), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
