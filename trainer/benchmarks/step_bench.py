"""Training steps of a plan, every baseline in one run: torchrun --nproc-per-node N trainer/benchmarks/step_bench.py.

Prints one JSON line a result, from rank 0. A case that fails prints its error and the others go on.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rap_trainer.bench import stock  # noqa: E402
from rap_trainer.bench.captured import CapturedIdeal, Rap  # noqa: E402
from rap_trainer.bench.subject import make_model, make_subject  # noqa: E402
from rap_trainer.bench.timing import profile_steps, time_steps, totals_by_name, versions  # noqa: E402
from rap_trainer.captured.schedule import Window  # noqa: E402
from rap_trainer.world import join_world  # noqa: E402

faulthandler.enable()
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--plan", type=int, default=0)
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--max-rows", type=int, default=1_000_000)
parser.add_argument("--cases", default="loop,pipeline,captured:auto")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--equal-steps", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
parser.add_argument("--precision", default="tf32", choices=["tf32", "fp32"])
parser.add_argument("--watchdog", type=float, default=200)
arguments = parser.parse_args()
faulthandler.dump_traceback_later(arguments.watchdog, exit=True)

torch.backends.cuda.matmul.allow_tf32 = arguments.precision == "tf32"
world = join_world(use_gpu=True)
common = {"plan": arguments.plan, "batch": arguments.batch, "gpus": world.size, "max_rows": arguments.max_rows}


def say(**result: object) -> None:
    """One JSON line, from rank 0."""
    if world.rank == 0:
        print(json.dumps({**common, **result}), flush=True)


def total(loss: torch.Tensor) -> float:
    """The loss of all ranks."""
    loss = loss.clone()
    dist.all_reduce(loss)
    return float(loss)


subject = make_subject(arguments.plan, arguments.batch, world, max_rows=arguments.max_rows)
names = [feature.name for feature in subject.graph.sparse]
say(case="setup", **versions(), sparse=len(names), dense=subject.graph.dense_width)


def profiled(case: str, step: Callable[[], object]) -> dict[str, object]:
    """What the GPU does in a step; the timeline goes to a file."""
    busy = profile_steps(step)
    if world.rank == 0:
        with (
            arguments.out / f"timeline_{case.replace(':', '-').replace('/', '-')}_{world.size}gpu_{arguments.batch}.txt"
        ).open("w") as file:
            for name, count, us in totals_by_name(busy.timeline)[:45]:
                file.write(f"{us:9.1f} us x{count:4d}  {name[:110]}\n")
            file.write("\n")
            for kernel in busy.timeline:
                file.write(f"{kernel.start_us:9.1f} {kernel.us:8.1f}  {kernel.name[:110]}\n")
    return {"busy_ms": busy.busy_ms, "sum_ms": busy.sum_ms, "kernels": busy.kernels}


reference: list[float] = []


def measured(case: str, step: Callable[[], object], losses: list[float], began: float) -> None:
    """Times and profiles a step and prints its line."""
    gap = max((abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=False)), default=None)
    timing = time_steps(step, steps=arguments.steps)
    say(
        case=case,
        **asdict(timing),
        **profiled(case, step),
        loss_gap=gap,
        losses=[round(loss, 7) for loss in (losses[:2] + losses[-2:])],
        memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2),
        seconds=round(time.time() - began, 1),
    )


def run(case: str) -> None:
    """One baseline, or one captured runtime with several schedules."""
    began = time.time()
    model = make_model(subject, world)
    kind, _, option = case.partition(":")
    count = arguments.equal_steps
    if kind == "captured":
        exchange, _, late = option.partition("+")
        ideal = CapturedIdeal(
            model,
            world,
            batch_size=arguments.batch,
            exchange=exchange or "auto",
            precision=arguments.precision,
            sort_early=late != "late",
        )
        losses = [ideal.train(subject.ready[i % len(subject.ready)], names) for i in range(count)]
        measured(case, ideal.one(), losses, began)
    elif kind == "rap":
        rap = Rap(model, subject, world, precision=arguments.precision)
        losses = [total(rap.step()) for _ in range(count)]
        for place in option.split("+"):
            window, _, programs = place.partition("/")
            rap.switch(Window(window), int(programs) or None)
            measured(f"rap:{place}", rap.step, losses, began)
        rap.runtime.close()
    elif kind == "pipeline":
        measured(case, stock.pipelined_ideal(model, subject, world.size, world.device), [], began)
    else:
        step = {"loop": stock.ideal, "sequential": stock.sequential}[kind](model, subject, world.size)
        losses = [total(step()) for _ in range(count)]
        if kind == "loop":
            reference[:] = losses
        measured(case, step, losses, began)


for case in arguments.cases.split(","):
    try:
        run(case)
    except Exception as error:
        say(case=case, error=f"{type(error).__name__}: {str(error)[:300]}")
        if world.rank == 0:
            traceback.print_exc(limit=12)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
sys.stdout.flush()
torch.cuda.synchronize()
os._exit(0)
