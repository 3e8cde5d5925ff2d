"""Runs cases of plans on the ranks of this torchrun and prints one JSON line a result, from rank 0.

    torchrun --nproc-per-node 2 -m rap_trainer.bench --plan 0 --batch 4096 --cases loop,captured:auto

Cases: loop and pipeline-ideal (stock TorchRec, inputs ready), sequential, pipeline, compile, cpu, rap-eager,
captured-modules, captured:EXCHANGE[+late][+whole][+apart] (our ideal), and rap:WINDOW/PROGRAMS[+WINDOW/PROGRAMS...] (PROGRAMS 0:
full grids). A case that cannot be says why and the next one runs. One that fails may leave the device, a capture
or a peer in any state: the ranks end, with exit code 1, and whoever started them starts others for what remains.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rap_trainer.bench.cases import DEFAULT_CASES, SECONDS
from rap_trainer.bench.measure import Effort, Measurement
from rap_trainer.bench.nodes import as_nodes
from rap_trainer.bench.rank import RankBench
from rap_trainer.bench.subject import Refused
from rap_trainer.bench.timing import versions
from rap_trainer.bench.units import Unit, from_argument, units_of
from rap_trainer.captured.assemble import CannotCapture
from rap_trainer.world import World, join_world

SETUP_S = 120.0
"""For making a plan's batches, before its first case: plan 4 at batch 8192 takes about 20 (H200 host)."""

COMPILE_S = 120.0
"""For inductor, before the first step of that case: with the eager twins, which it was traced from, it was not done with plan 0 in 36 s (H200 host, 2026-11-30); as
it is written now it took two processors of a small machine 127 s for them, and has not been timed beside a GPU."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line of a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, nargs="+", default=[0], choices=range(5))
    parser.add_argument("--batch", type=int, nargs="+", default=[4096], help="rows a GPU")
    parser.add_argument("--cases", default=DEFAULT_CASES)
    parser.add_argument("--units", help="instead of the three: a JSON list of [plan, batch, case]")
    parser.add_argument("--max-rows", type=int, default=1_000_000, help="cap of every table")
    parser.add_argument("--precision", default="tf32", choices=["tf32", "fp32"])
    parser.add_argument("--equal-steps", type=int, default=12, help="losses to compare between cases, fewer where slow")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="measured steps of a case")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds a case may take")
    parser.add_argument("--until", type=float, help="moment of the monotonic clock after which no case begins")
    parser.add_argument("--timelines", type=Path, help="folder for kernel timelines")
    parser.add_argument("--nodes", type=int, default=1, help="take this host's ranks for so many hosts'")
    return parser.parse_args(arguments)


class Lines:
    """JSON lines of one process."""

    def __init__(self, world: World, max_rows: int, nodes: int) -> None:
        self._world = world
        self._common = {"gpus": world.size, "nodes": nodes, "max_rows": max_rows}

    def say(self, unit: Unit, *, every_rank: bool = False, **result: Any) -> None:
        """One line, from rank 0 unless every rank may have something to say."""
        if self._world.rank != 0 and not every_rank:
            return
        what = {"plan": unit.plan, "batch": unit.batch, **self._common, "unit": unit.case}
        print(json.dumps({**what, **result}), flush=True)


def run_all(bench: RankBench, units: Sequence[Unit], lines: Lines, chosen: argparse.Namespace) -> int:
    """The units in order; 1 as soon as one has ruined this process."""
    for unit in units:
        if chosen.until is not None and bench.any_rank(time.monotonic() > chosen.until):
            lines.say(unit, case=unit.case, error="not run: the time of the bench was up")
            lines.say(unit, ended=True, failed=True)
            continue
        limit_s = (
            chosen.limit + (SETUP_S if bench.is_new(unit) else 0.0) + (COMPILE_S if unit.case == "compile" else 0.0)
        )
        faulthandler.dump_traceback_later(limit_s, exit=True)  # a hung collective must not hold the machine
        try:
            for measurement in bench.run(unit):
                lines.say(unit, **_described(measurement))
        except (CannotCapture, Refused) as reason:
            lines.say(unit, case=unit.case, error=f"{type(reason).__name__}: {str(reason)[:400]}")
            lines.say(unit, ended=True, failed=True)
        except Exception as error:
            traceback.print_exc(limit=24)
            text = _root(error)
            lines.say(unit, every_rank=True, case=unit.case, rank=bench.world.rank, error=text)
            lines.say(unit, every_rank=True, ended=True, failed=True)
            return 1
        else:
            lines.say(unit, ended=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
    return 0


def _root(error: BaseException) -> str:
    """What went wrong first: a capture that is broken off raises again as it ends."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error)[:400]}"


def _described(measurement: Measurement) -> dict[str, Any]:
    return {"case": measurement.case, **measurement.result}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases on this rank. Ends the process, for collectives of a failed case may still hang in threads."""
    chosen = options(sys.argv[1:] if arguments is None else arguments)
    torch.backends.cuda.matmul.allow_tf32 = chosen.precision == "tf32"
    os.environ.update(as_nodes(os.environ, chosen.nodes))
    world = join_world(use_gpu=True)
    units = units_of(chosen.plan, chosen.batch, chosen.cases.split(","))
    if chosen.units:
        units = from_argument(chosen.units)
    lines = Lines(world, chosen.max_rows, chosen.nodes)
    effort = Effort(seconds=chosen.seconds, repeats=chosen.repeats, equal_steps=chosen.equal_steps)
    bench = RankBench(
        world, max_rows=chosen.max_rows, precision=chosen.precision, effort=effort, timelines=chosen.timelines
    )
    lines.say(units[0], case="setup", **versions())
    code = run_all(bench, units, lines, chosen)
    bench.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
