"""Runs baselines of one plan on the ranks of this torchrun and prints one JSON line a result, from rank 0.

    torchrun --nproc-per-node 2 trainer/benchmarks/step_bench.py --plan 0 --batch 4096

A case that fails prints its error and the others go on. Cases: loop and pipeline-ideal (stock TorchRec, inputs
ready), sequential, pipeline, cpu, rap-eager, captured-modules, captured:EXCHANGE[+late] (our ideal), and
rap:WINDOW/PROGRAMS[+WINDOW/PROGRAMS...] (PROGRAMS 0: full grids).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from rap_trainer.bench import eager, stock
from rap_trainer.bench.ablation import captured_modules
from rap_trainer.bench.captured import CapturedIdeal, Rap
from rap_trainer.bench.cases import DEFAULT_CASES
from rap_trainer.bench.subject import Subject, make_model, make_subject
from rap_trainer.bench.timing import Kernel, profile_steps, time_steps, totals_by_name, versions
from rap_trainer.captured.schedule import Window
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World, join_world


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, default=0, choices=range(5))
    parser.add_argument("--batch", type=int, default=4096, help="rows a GPU")
    parser.add_argument("--max-rows", type=int, default=1_000_000, help="cap of every table")
    parser.add_argument("--cases", default=DEFAULT_CASES)
    parser.add_argument("--precision", default="tf32", choices=["tf32", "fp32"])
    parser.add_argument("--equal-steps", type=int, default=12, help="losses compared with the stock loop's")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8, help="CPU workers a rank")
    parser.add_argument("--timelines", type=Path, help="folder for kernel timelines")
    return parser.parse_args(arguments)


class Bench:
    """One plan and batch size on these ranks."""

    def __init__(self, chosen: argparse.Namespace, world: World) -> None:
        self.chosen, self.world = chosen, world
        self.subject: Subject = make_subject(chosen.plan, chosen.batch, world, max_rows=chosen.max_rows)
        self.names = [feature.name for feature in self.subject.graph.sparse]
        self.reference: list[float] = []
        self.say(case="setup", sparse=len(self.names), dense=self.subject.graph.dense_width, **versions())

    def say(self, **result: object) -> None:
        """One JSON line."""
        if self.world.rank == 0:
            common = {
                "plan": self.chosen.plan,
                "batch": self.chosen.batch,
                "gpus": self.world.size,
                "max_rows": self.chosen.max_rows,
            }
            print(json.dumps({**common, **result}), flush=True)

    def run(self, case: str) -> None:
        """One case, or all schedules of one captured runtime."""
        began = time.time()
        torch.cuda.reset_peak_memory_stats()
        model = make_model(self.subject, self.world)
        kind, _, option = case.partition(":")
        if kind == "rap":
            self._rap(model, option, began)
        elif kind == "captured":
            self._captured(model, case, option, began)
        else:
            step, losses = self._hosted(kind, model)
            self._measure(case, step, losses, began)

    def _hosted(self, kind: str, model: ShardedModel) -> tuple[Callable[[], object], list[float]]:
        """A step the host drives, and its first losses."""
        subject, size, device = self.subject, self.world.size, self.world.device
        if kind == "captured-modules":
            return captured_modules(model, subject, self.world), []
        if kind == "pipeline-ideal":
            return stock.pipelined_ideal(model, subject, size, device), []
        step: Callable[[], torch.Tensor]
        if kind == "cpu":
            workers = eager.CpuWorkers(subject, self.world.rank, workers=self.chosen.workers)
            step = eager.cpu_fed(model, subject, size, device, workers)
        elif kind in ("pipeline", "rap-eager"):
            make = {"pipeline": eager.staged_pipeline, "rap-eager": eager.rap_eager}[kind]
            step = make(model, subject, size, device)
        else:
            step = {"loop": stock.ideal, "sequential": stock.sequential}[kind](model, subject, size)
        losses = [] if kind == "cpu" else [self._total(step()) for _ in range(self.chosen.equal_steps)]
        if kind == "loop":
            self.reference = losses
        return step, losses

    def _captured(self, model: ShardedModel, case: str, option: str, began: float) -> None:
        exchange, _, late = option.partition("+")
        ideal = CapturedIdeal(
            model,
            self.world,
            batch_size=self.chosen.batch,
            exchange=exchange or "auto",
            precision=self.chosen.precision,
            sort_early=late != "late",
        )
        ready = self.subject.ready
        losses = [ideal.train(ready[i % len(ready)], self.names) for i in range(self.chosen.equal_steps)]
        self._measure(case, ideal.one(), losses, began)
        ideal.graphs.close()

    def _rap(self, model: ShardedModel, option: str, began: float) -> None:
        rap = Rap(model, self.subject, self.world, precision=self.chosen.precision)
        losses = [self._total(rap.step()) for _ in range(self.chosen.equal_steps)]
        for place in option.split("+"):
            window, _, programs = place.partition("/")
            rap.switch(Window(window), int(programs) or None)
            rap.host_s.clear()
            self._measure(f"rap:{place}", rap.step, losses, began, rap=rap)
        rap.runtime.close()

    def _total(self, loss: torch.Tensor) -> float:
        loss = loss.clone()
        dist.all_reduce(loss)
        return float(loss)

    def _measure(
        self, case: str, step: Callable[[], object], losses: list[float], began: float, *, rap: Rap | None = None
    ) -> None:
        gap = max((abs(a - b) / abs(b) for a, b in zip(losses, self.reference, strict=False)), default=None)
        timing = time_steps(step, steps=self.chosen.steps, repeats=self.chosen.repeats)
        hosts = {} if rap is None else _host_parts(rap)
        busy = profile_steps(step)
        self._keep_timeline(case, busy.timeline)
        self.say(
            case=case,
            **asdict(timing),
            **hosts,
            samples_per_s=round(self.chosen.batch * self.world.size / timing.ms * 1e3),
            busy_ms=busy.busy_ms,
            sum_ms=busy.sum_ms,
            kernels=busy.kernels,
            loss_gap=gap,
            losses=[round(loss, 7) for loss in (losses[:1] + losses[-1:])],
            memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2),
            seconds=round(time.time() - began, 1),
        )

    def _keep_timeline(self, case: str, timeline: Sequence[Kernel]) -> None:
        if self.chosen.timelines is None or self.world.rank != 0:
            return
        self.chosen.timelines.mkdir(parents=True, exist_ok=True)
        name = case.replace(":", "-").replace("/", "-")
        with (self.chosen.timelines / f"{name}_{self.world.size}gpu_{self.chosen.batch}.txt").open("w") as file:
            for kernel, count, us in totals_by_name(timeline)[:45]:
                file.write(f"{us:9.1f} us x{count:4d}  {kernel[:110]}\n")
            file.write("\n")
            for one in timeline:
                file.write(f"{one.start_us:9.1f} {one.us:8.1f}  {one.name[:110]}\n")


def _host_parts(rap: Rap) -> dict[str, float]:
    prepare, train = zip(*rap.host_s, strict=True)
    return {
        "prepare_ms": round(statistics.median(prepare) * 1e3, 4),
        "train_ms": round(statistics.median(train) * 1e3, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases on this rank. Ends the process, for collectives of a failed case may still hang in threads."""
    chosen = options(sys.argv[1:] if arguments is None else arguments)
    torch.backends.cuda.matmul.allow_tf32 = chosen.precision == "tf32"
    bench = Bench(chosen, join_world(use_gpu=True))
    failed = 0
    for case in chosen.cases.split(","):
        try:
            bench.run(case)
        except Exception as error:
            failed = 1
            bench.say(case=case, error=f"{type(error).__name__}: {str(error)[:300]}")
            traceback.print_exc(limit=12)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    sys.stdout.flush()
    os._exit(failed)
