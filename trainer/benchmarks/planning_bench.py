"""What the planner predicts, measured on GPUs. JSON lines; each case is a command of its own.

python trainer/benchmarks/planning_bench.py kernels [--plans 0,2,3,4] [--seconds 40]
torchrun --standalone --nproc-per-node N trainer/benchmarks/planning_bench.py windows [--plan 0]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.plans import plan_job
from rap_trainer.profiling.batches import first_rows, pool
from rap_trainer.profiling.launches import LaunchBench
from rap_trainer.profiling.subgraphs import parts

MAX_TABLE_ROWS = 1_000_000
SETS = {4: 2}  # input sets by plan; others 4: more than the L2 holds
LENGTHS = {4: (5.0, 10.0, 20.0, 40.0)}  # mean list lengths by plan; others 1
ROWS = (512, 1024, 2048, 4096, 8192, 16384)
PARTS = 10  # widths of a plan
GRIDS = (None, 64)


def emit(**result: Any) -> None:
    """One JSON line."""
    print(json.dumps(result), flush=True)


def compiled(document: dict[str, Any]) -> FeatureGraph:
    """The feature graph of a job."""
    graph, problems = compile_features(RAPJob.model_validate(document).spec)
    assert graph is not None, problems
    return graph


def kernels(options: argparse.Namespace) -> None:
    """Every launch of plans' fused programs over widths, list lengths and batch sizes."""
    device, bench = torch.device("cuda"), LaunchBench(torch.device("cuda"))
    numbers = [int(number) for number in options.plans.split(",")]
    for number in numbers:
        document = plan_job(number, max_rows=MAX_TABLE_ROWS)
        graph = compiled(document)
        most = max(ROWS) if number != 4 else 8192
        until = time.monotonic() + options.seconds / len(numbers)
        for length in LENGTHS.get(number, (1.0,)):
            pools = [
                pool(document, most, mean_length=length, seed=seed, device=device)
                for seed in range(SETS.get(number, 4))
            ]
            cases = [(part, rows) for part in parts(graph, number=PARTS) for rows in ROWS if rows <= most]
            whole, rest = cases[: len(ROWS)], cases[len(ROWS) :]
            random.Random(number).shuffle(rest)
            share = until - time.monotonic()
            stop = time.monotonic() + share / max(1, len(LENGTHS.get(number, (1.0,))))
            for part, rows in (*whole, *rest):
                if time.monotonic() > (stop if number != 4 else until):
                    break
                batches = [first_rows(raw, rows, part) for raw in pools]
                for found in bench.measure(part, batches, grids=GRIDS):
                    work = found.work
                    emit(
                        case="kernel",
                        plan=number,
                        length=length,
                        features=len(part.features),
                        rows=rows,
                        programs=found.programs,
                        seconds=found.seconds,
                        spread=round(found.spread, 4),
                        stage=work.stage,
                        wave=work.wave,
                        entries=len(work.entries),
                        num_bytes=work.num_bytes,
                        num_tiles=work.num_tiles,
                        largest_share=work.largest_share,
                        functions=work.functions,
                        ops=dict(work.ops),
                    )
            del pools


def windows(options: argparse.Namespace) -> None:
    """The windows of the captured step of a plan on the ranks of this torchrun."""
    from rap_trainer.bench.subject import make_model, make_subject
    from rap_trainer.captured.runtime import CapturedRuntime, Tuning
    from rap_trainer.profiling.captured_windows import CapturedWindows
    from rap_trainer.world import join_world

    torch.backends.cuda.matmul.allow_tf32 = True
    world = join_world(use_gpu=True)
    subject = make_subject(options.plan, options.batch, world, max_rows=MAX_TABLE_ROWS)
    runtime = CapturedRuntime(
        make_model(subject, world),
        subject.graph,
        world,
        batch_size=options.batch,
        tuning=Tuning(exchange=options.exchange),
    )
    pending = None
    for number in range(6):
        upcoming = runtime.prepare(subject.host[number % len(subject.host)])
        if pending is not None:
            runtime.train(pending)
        pending = upcoming
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = CapturedWindows(runtime.assembly, world).find()
    if world.rank == 0:
        common = {"plan": options.plan, "batch": options.batch, "gpus": world.size, "exchange": options.exchange}
        emit(case="step", **common, seconds=found.step_seconds, took=time.perf_counter() - began)
        emit(case="opens", **common, **found.opens_seconds)
        for window, responses in found.responses.items():
            for response in responses:
                emit(case="response", **common, window=window, **response.model_dump(mode="json"))
    sys.stdout.flush()


def main() -> None:
    """Runs one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    kernel = commands.add_parser("kernels")
    kernel.add_argument("--plans", default="0,2,3,4")
    kernel.add_argument("--seconds", type=float, default=40.0)
    kernel.set_defaults(run=kernels)
    window = commands.add_parser("windows")
    window.add_argument("--plan", type=int, default=0)
    window.add_argument("--batch", type=int, default=4096)
    window.add_argument("--exchange", default="auto")
    window.set_defaults(run=windows)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
