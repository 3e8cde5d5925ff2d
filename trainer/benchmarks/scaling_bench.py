"""One run over 1, 2, 4 ... GPUs of this host: scaling, prediction, drift, a resize, and two nodes emulated.

    python trainer/benchmarks/scaling_bench.py [--seconds 570] > scaling.jsonl
    python -m rap_trainer.bench.report scaling.jsonl

Prints the JSON lines of the programs it runs, each with its `stage`, and one line `{"stage": ..., "seconds": ..., "code": ...}`
for each stage. A stage that is out of its time or fails costs the others nothing. Not a measurement of its own: `rap
bench`, `planning_bench.py`, `drift_bench.py` and `resize_bench.py` measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLANS = (0, 2, 4)
BATCH = 4096  # rows a GPU in weak scaling, and of all GPUs together in strong scaling
WEAK = ("captured:auto", "rap:output_dist/0", "loop", "sequential", "pipeline")
STRONG = ("captured:auto", "rap:output_dist/0")
RAP = "import sys; from rap_trainer.cli import main; sys.exit(main(sys.argv[1:]))"
SHARES = {"steps": 0.55, "nodes": 0.10, "prediction": 0.20, "drift": 0.10, "resize": 0.05}
"""Of the time, by kind of stage."""


@dataclass(frozen=True)
class Stage:
    """A program and the time it has."""

    name: str
    seconds: float
    command: tuple[str, ...]


def stages(*, gpus: int, seconds: float, folder: Path) -> list[Stage]:
    """What runs on a machine with so many GPUs, in order. `folder` gets the units of the benches."""
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus]
    time_s = {kind: seconds * share for kind, share in SHARES.items()}
    several = [count for count in counts if count > 1]
    found = [
        Stage(f"steps on {count}", time_s["steps"] / len(counts), steps(count, folder, time_s["steps"] / len(counts)))
        for count in counts
    ]
    for count in several:
        limit_s = time_s["prediction"] / len(several)
        found.append(Stage(f"prediction on {count}", limit_s, prediction(count, limit_s)))
    if several:
        most, beside = several[-1], min(4, several[-1])
        found.append(Stage("steps of 2 nodes", time_s["nodes"], steps(most, folder, time_s["nodes"], nodes=2)))
        found.append(Stage(f"drift on {beside}", time_s["drift"], drift(beside)))
        found.append(Stage("resize", time_s["resize"], (sys.executable, str(HERE / "resize_bench.py"))))
    return found


def steps(gpus: int, folder: Path, limit_s: float, *, nodes: int = 1) -> tuple[str, ...]:
    """`rap bench` of weak scaling, then of strong where it differs."""
    if nodes > 1:
        units = [
            [plan, BATCH, case] for plan in (0, 2) for case in ("captured:nccl", "rap:output_dist/0", "rap:inline/0")
        ]
    else:
        units = [[plan, BATCH, case] for plan in PLANS for case in WEAK]
        units += [[plan, BATCH // gpus, case] for plan in PLANS for case in STRONG if gpus > 1]
    path = folder / f"units-{gpus}-{nodes}.json"
    path.write_text(json.dumps(units))
    options = ("--units", str(path), "--gpus", str(gpus), "--nodes", str(nodes), "--seconds", "0.4", "--limit", "40")
    return (sys.executable, "-c", RAP, "bench", *options, "--budget", str(round(limit_s)))


def prediction(gpus: int, limit_s: float) -> tuple[str, ...]:
    """Profile, plan and measured steps of the plan and of others."""
    time_s = str(max(2, round(limit_s / 12)))
    options = ("sweep", "--plans", "0,4", "--grids", "0,64", "--seconds", time_s, "--sweep-seconds", time_s)
    return (*torchrun(gpus), str(HERE / "planning_bench.py"), *options)


def drift(gpus: int) -> tuple[str, ...]:
    """A drift of list lengths and a neighbour under the operator's decision, and what a switch costs."""
    options = ("--plan", "4", "--batch", str(BATCH), "--scale", "60")
    return (*torchrun(gpus), str(HERE / "drift_bench.py"), *options)


def torchrun(gpus: int) -> tuple[str, ...]:
    """The launcher of so many ranks here."""
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))


def run(stage: Stage) -> None:
    """Runs a stage and prints its lines as they come."""
    began = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", **os.environ}
    command = ("timeout", "--kill-after=5", str(round(stage.seconds)), *stage.command)  # of the whole group of ranks
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # our own
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("{"):
                emit({"stage": stage.name, **json.loads(text)})
    emit({"stage": stage.name, "seconds": round(time.monotonic() - began, 1), "code": process.returncode})


def emit(line: dict[str, Any]) -> None:
    """One JSON line."""
    print(json.dumps(line), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Every stage in turn. Gives 2 where there is no GPU."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything")
    parser.add_argument("--only", default="", help="stages whose names hold this")
    options = parser.parse_args(arguments)
    gpus = torch.cuda.device_count()
    if gpus == 0:
        sys.stderr.write("a scaling run is of GPUs, and this machine has none\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages(gpus=gpus, seconds=options.seconds, folder=Path(folder)):
            if options.only in stage.name:
                run(stage)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
